"""One workload under every value of one setting, side by side: the same requests at the same times for each."""

import datetime
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.errors import UserError
from reports.comparison import COMPARISON_FILE
from reports.settings import assignment, setting_text
from tuner.arguments import TuneArguments
from tuner.catalogue import CATALOGUE
from tuner.environment import tool_version
from tuner.folders import claimed_folder
from tuner.interrupt import deferred_interrupts
from tuner.notices import say_inert, say_near_duplicates, with_queue_delay
from tuner.progress import ProgressDisplay
from tuner.runner import at
from tuner.settings import NAMES, Settings, parse_value, require_known
from tuner.store import RUNS_FOLDER
from tuner.targets.bundled import DOES_NOT_FIT, BundledTarget, Measured
from workloads.early_stop import INTERRUPTED
from workloads.records import SCHEMA_VERSION, write_atomic, write_run
from workloads.spec import WorkloadSpec


@dataclass(frozen=True, slots=True)
class Compared:
    """What a comparison left.

    Attributes:
        folder: with its records and reports.
        record: the content of `comparison.json`.
        interrupted: it was stopped; the runs that were whole by then are in the record.
    """

    folder: Path
    record: dict[str, Any]
    interrupted: bool

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The runs that were not made to their end, and why."""
        return self.record["failures"]


def parse_comparison(what: str) -> tuple[str, tuple[Any, ...]]:
    """`batching`, for all values it has, or `max_num_seqs=16,64`: the setting and its values.

    Raises:
        UserError: no such setting, no such value, fewer than two, or none for a setting without a known list.
    """
    option, equals, texts = (part.strip() for part in what.partition("="))
    require_known(option)
    kind = CATALOGUE[option].kind
    if not equals:
        if kind.choices is None:
            raise UserError(f"tune compare {option}: say which values, such as tune compare {option}=a,b")
        return option, kind.choices
    values = tuple(dict.fromkeys(parse_value(option, text) for text in texts.split(",")))
    if len(values) < 2:
        raise UserError(f"tune compare {what!r} compares nothing: give at least two values, {option}=a,b")
    return option, values


def in_turn(values: Sequence[Any], repeats: int) -> list[tuple[Any, int]]:
    """Values and repeats in the order A B C, C B A, A B C, so that a drift of the machine hits all values alike."""
    return [(v, repeat) for repeat in range(repeats) for v in (values if repeat % 2 == 0 else reversed(values))]


def run_comparison(
    arguments: TuneArguments,
    what: str,
    *,
    repeats: int = 1,
    out: str | None = None,
    command: Sequence[str] = (),
    display: ProgressDisplay | None = None,
) -> Compared:
    """Measure one workload under every value of one setting, and write records and reports.

    Args:
        arguments: as of `tune bench`; `seed` is the first repeat's, the others follow it.
        what: see `parse_comparison`.
        repeats: runs per value, each repeat with a seed of its own.
        out: the folder; None for a new one under `runs/`.
        command: the command line that repeats it.
        display: where progress goes; None for standard error.

    Raises:
        UserError: bad input, or not one value that can be measured.
    """
    display = display or _display()
    option, values = parse_comparison(what)
    spec = arguments.load_workload()
    rate = arguments.one_rate(spec, "tune compare")
    settings = _settings_by_value(arguments, option, values, display)
    say_near_duplicates(option, values, spec, display.say)
    with claimed_folder(out, f"{datetime.date.today():%Y-%m-%d}-compare-{option}-{spec.name}") as folder:
        target = _load(arguments, spec, list(settings.values()), display)
        comparison = _Comparison(folder, target, arguments, rate, option, display)
        comparison.start(settings, repeats, command)
        interrupted = comparison.run(settings)
    record = comparison.record
    if not record["runs"] and not interrupted:
        raise UserError(f"no value of {option} could be measured: {record['failures'][0]['reason']}")
    return Compared(folder, record, interrupted)


def _display() -> ProgressDisplay:
    from rich.console import Console

    return ProgressDisplay(Console(stderr=True))


def _settings_by_value(
    arguments: TuneArguments, option: str, values: Sequence[Any], display: ProgressDisplay
) -> dict[Any, Settings]:
    """What each value is measured with.

    Raises:
        UserError: the option is fixed, or its values make no difference.
    """
    given = arguments.names_set()
    if option in given:
        raise UserError(f"--set {option} fixes what is to be compared: leave it out")
    asked = arguments.settings()
    batchings = values if option == "batching" else (asked.batching,)
    base = with_queue_delay(asked, batchings, [*given, option], display.say)
    settings = {value: replace(base, **{option: value}) for value in values}
    say_inert(given, list(settings.values()), display.say)
    plain: dict[Settings, Any] = {}
    for value, its in settings.items():
        other = plain.setdefault(its.canonical(), value)
        if other != value:
            same = f"{setting_text(option, other)} and {setting_text(option, value)}"
            display.say(f"{option}: {same} come to the same beside the other settings")
    if len(plain) == 1:
        inert = base.inert_beside(option)
        why = f"it does nothing beside {inert}" if inert else "its values come to the same beside the other settings"
        raise UserError(f"tune compare {option}: {why}; use --set to change that")
    return settings


def _load(
    arguments: TuneArguments, spec: WorkloadSpec, settings: Sequence[Settings], display: ProgressDisplay
) -> BundledTarget:
    """The engine with the first settings that fit, so that one that does not is no end of the others."""
    for candidate in settings[:-1]:
        try:
            return BundledTarget(arguments.target_options(), spec, candidate, display.say)
        except DOES_NOT_FIT:
            continue
    return BundledTarget(arguments.target_options(), spec, settings[-1], display.say)


class _Comparison:
    """A comparison under way. `comparison.json` is written after every run, so nothing that was measured is lost.

    Only runs that went to their end are in its `runs`: a part of one would be no match for the others.
    """

    def __init__(
        self,
        folder: Path,
        target: BundledTarget,
        arguments: TuneArguments,
        rate: float | None,
        option: str,
        display: ProgressDisplay,
    ) -> None:
        self.record: dict[str, Any] = {}
        self._folder = folder
        self._target = target
        self._slo = arguments.parse_slo()
        self._lengths = arguments.run_lengths(None)
        self._first_seed = arguments.seed
        self._rate = rate
        self._option = option
        self._display = display
        self._num_stored = 0

    def start(self, settings: dict[Any, Settings], repeats: int, command: Sequence[str]) -> None:
        """Begin the record."""
        target = self._target
        shared = next(iter(settings.values())).to_dict()
        self.record = {
            "schema_version": SCHEMA_VERSION,
            "kind": "comparison",
            "tool_version": tool_version(),
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "simulated": target.simulated,
            "model": target.describe_model(),
            "device": target.describe_device(),
            "environment": target.environment,
            "workload": target.spec.to_dict(),
            "slo": None if self._slo is None else str(self._slo),
            "seed": self._first_seed,
            "command": shlex.join(command),
            "option": self._option,
            "values": list(settings),
            "settings": {name: shared[name] for name in NAMES if name != self._option},
            "rate": self._rate,
            "repeats": repeats,
            "runs": [],
            "failures": [],
        }
        simulated = " (simulated)" if target.simulated else ""
        self._display.say(
            f"{target.source.name} on {target.executor.device_name}{simulated}, workload {target.spec.name}: "
            f"{self._option} = {', '.join(setting_text(self._option, v) for v in settings)}"
        )

    def run(self, settings: dict[Any, Settings]) -> bool:
        """Make all runs. However that ends, reports are written of those that were whole.

        Returns:
            Whether it was interrupted.
        """
        from reports.build import write_reports

        try:
            with self._display.live():
                turns = in_turn(list(settings), self.record["repeats"])
                return any(self._measure(value, settings[value], repeat) for value, repeat in turns)
        except KeyboardInterrupt:
            return True
        finally:
            if self.record["runs"]:
                write_reports(self._folder)

    def _measure(self, value: Any, settings: Settings, repeat: int) -> bool:
        """Make one run and store it. A value that has failed is not tried again.

        Returns:
            Whether it was interrupted.
        """
        if any(failure["value"] == value for failure in self.record["failures"]):
            return False
        seed = self._first_seed + repeat
        label = f"{assignment(self._option, value)}{at(self._rate)}"
        update = self._display.run_started(label)
        entry = {"value": value, "repeat": repeat, "seed": seed, "path": None}
        with deferred_interrupts() as interrupted:
            try:
                measured = self._target.measure(
                    settings,
                    self._lengths.load(self._rate, seed),
                    self._slo,
                    stop_when_settled=False,
                    on_progress=update,
                    should_stop=interrupted,
                )
            except DOES_NOT_FIT as error:
                self._fail(entry, str(error))
                if self._num_stored:
                    self._save()
                return interrupted()
            finally:
                self._display.run_ended()
            entry["path"] = self._store(measured, value, repeat)
            if measured.error is not None:
                self._fail(entry, measured.error)
            elif measured.meta["stopped_early"] != INTERRUPTED:
                self.record["runs"].append(entry)
                self._display.say(f"{label}: {_describe(measured)}")
            self._save()
            return interrupted()

    def _fail(self, entry: dict[str, Any], reason: str) -> None:
        self.record["failures"].append(entry | {"reason": reason})
        self._display.say(f"{assignment(self._option, entry['value'])} failed: {reason}")

    def _store(self, measured: Measured, value: Any, repeat: int) -> str:
        self._num_stored += 1
        again = f"-{repeat + 1}" if self.record["repeats"] > 1 else ""
        text = assignment(self._option, value).partition("=")[2]
        path = f"{RUNS_FOLDER}/{self._num_stored:03d}-{text}{again}"
        write_run(self._folder / path, measured.meta, measured.requests, measured.iterations)
        return path

    def _save(self) -> None:
        path = self._folder / COMPARISON_FILE
        try:
            write_atomic(path, json.dumps(self.record, indent=2, ensure_ascii=False) + "\n")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def _describe(measured: Measured) -> str:
    summary = measured.meta["summary"]
    parts = [
        "nothing measured" if (rate := summary["output_throughput"]) is None else f"{rate:.4g} output tokens/s",
        "no request completed" if (p95 := summary["p95_ttft_ms"]) is None else f"p95 TTFT {p95:.0f} ms",
    ]
    validity = measured.meta["validity"]
    if not validity["valid"]:
        parts.append("; ".join(check["detail"] for check in validity["checks"] if not check["ok"]))
    return ", ".join(parts)
