"""`tune` with options and no sub-command: a study, new or resumed."""

import datetime
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.build import find_device
from engine.errors import UserError
from engine.kv_cache.sizing import GIB
from tuner.budget import Budget
from tuner.cli.output import new_folder, print_json, print_summary, require_writable
from tuner.environment import tool_version
from tuner.progress import ProgressDisplay
from tuner.runner import RunLengths, Runner
from tuner.search import StudyOptions, Tuner
from tuner.settings import Settings, parse_assignment
from tuner.space import SearchSpace, default_space, with_search
from tuner.store import BEST_FILE, StudyStore
from tuner.targets.bundled import BundledTarget, TargetOptions
from tuner.units import parse_bytes, parse_duration_s
from workloads.slo import Slo, parse_goodput, parse_slo
from workloads.spec import WorkloadSpec, load_spec

INTERRUPTED_CODE = 130
DEFAULT_BUDGET = "9m"
DEFAULT_SIMULATED_TRIALS = 40
WINDOWS_PER_BUDGET = 27
WARMUP_SHARE = 0.4
# Beyond them a run would take days, or the plan more memory than there is.
RATE_LIMITS = (1e-4, 1e5)
WINDOW_LIMITS_S = (10.0, 60.0)


@dataclass(frozen=True)
class TuneArguments:
    """The command line's options, as texts; see `tuner.cli.options` for what each means."""

    slo: Sequence[str] = ()
    goodput: Sequence[str] = ()
    workload: str | None = None
    arrival: str | None = None
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    rate: str = "auto"
    model: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    max_model_len: int | None = None
    device_memory: str | None = None
    set: Sequence[str] = field(default_factory=list)
    search: Sequence[str] = field(default_factory=list)
    budget: str | None = None
    trials: int | None = None
    window: str | None = None
    warmup: str | None = None
    drain_timeout: str = "60s"
    seed: int = 0

    def parse_slo(self) -> Slo | None:
        """The SLO of `--slo` or `--goodput`; None for neither.

        Raises:
            UserError: both, or one that does not parse.
        """
        if self.slo and self.goodput:
            raise UserError("--slo and --goodput say the same thing in two forms: give one of them")
        if self.goodput:
            return parse_goodput(self.goodput)
        return parse_slo(self.slo) if self.slo else None

    def parse_rate(self) -> float | None:
        """Requests per second; None for auto.

        Raises:
            UserError: neither auto nor a number above 0.
        """
        if self.rate == "auto":
            return None
        try:
            rate = float(self.rate)
        except ValueError:
            rate = 0.0
        if not RATE_LIMITS[0] <= rate <= RATE_LIMITS[1]:
            raise UserError(
                f"--rate {self.rate!r} is not possible: give requests per second above 0 ({RATE_LIMITS[0]:g} to "
                f"{RATE_LIMITS[1]:g}), or auto"
            )
        return rate

    def load_workload(self) -> WorkloadSpec:
        """The workload with its overrides; the default depends on the device."""
        default = "chat-small" if find_device(self.device) == "cpu" else "chat"
        overrides = {"arrival": self.arrival, "prompt_tokens": self.prompt_tokens, "output_tokens": self.output_tokens}
        return load_spec(self.workload or default, [f"{k}={v}" for k, v in overrides.items() if v is not None])

    def target_options(self) -> TargetOptions:
        """Model and device."""
        memory = None if self.device_memory is None else parse_bytes("--device-memory", self.device_memory)
        return TargetOptions(self.model, self.device, self.dtype, self.max_model_len, memory)

    def run_lengths(self, budget_s: float | None) -> RunLengths:
        """Lengths of a run's parts: as asked, else by the budget."""
        if self.window is not None:
            window_s = parse_duration_s("--window", self.window)
        else:
            low, high = WINDOW_LIMITS_S
            # Simulated seconds cost next to nothing, so the budget need not set them.
            follows_budget = budget_s is not None and not self.device.startswith("sim:")
            window_s = min(high, max(low, (budget_s or 0.0) / WINDOWS_PER_BUDGET)) if follows_budget else high
        if self.warmup is None:
            warmup_s = max(3.0, WARMUP_SHARE * window_s)
        else:
            warmup_s = 0.0 if self.warmup.strip() in ("0", "0s") else parse_duration_s("--warmup", self.warmup)
        return RunLengths(warmup_s, window_s, parse_duration_s("--drain-timeout", self.drain_timeout))


def run_study(arguments: TuneArguments, *, out: str | None, resume: str | None, as_json: bool) -> int:
    """Run or resume a study and write its reports.

    Returns:
        Exit code: 0, 1 when no setting met the SLO, 130 when interrupted; the state is stored then.

    Raises:
        UserError: bad input, or a baseline that cannot be measured.
    """
    from rich.console import Console

    from reports.build import write_reports

    display = ProgressDisplay(Console(stderr=True))
    store = None
    if resume is not None:
        store = StudyStore.open(Path(resume))
        arguments = _resumed_arguments(store, arguments)
    slo = arguments.parse_slo()
    if slo is None:
        raise UserError("there is nothing to tune for: give an objective, such as --slo p95_ttft=1s")
    rate, spec = arguments.parse_rate(), arguments.load_workload()
    simulated = find_device(arguments.device).startswith("sim:")
    limits = _limits(arguments, simulated)
    lengths = arguments.run_lengths(limits[0])
    if not simulated and limits[0] is not None and store is None:
        Budget(limits[0]).require(lengths.shortest_baseline_s(rate))
    fixed = Settings().override(arguments.set)
    if store is None:
        folder = new_folder(out, f"{datetime.date.today():%Y-%m-%d}-{spec.name}")
        require_writable(folder)
    else:
        folder = store.path
    target = BundledTarget(arguments.target_options(), spec, fixed, display.say)
    space = _space(arguments, fixed, target)
    if store is None:
        store = StudyStore.create(folder, _new_record(arguments, target, slo, space, limits, lengths))
    budget = Budget(limits[0], store.record["elapsed_s"])
    display.time_left_s = lambda: budget.left_s
    runner = Runner(target, store, budget, display, slo, lengths)
    options = StudyOptions(
        rate, limits[1], arguments.seed, store.record["options"]["command"], arguments.warmup is None
    )
    _say_what(runner)
    tuner = Tuner(runner, space, options)
    try:
        with display.live():
            tuner.run()
    except KeyboardInterrupt:
        write_reports(store.path)
        display.say(f"interrupted; everything measured is stored: tune --resume {shlex.quote(str(store.path))} goes on")
        return INTERRUPTED_CODE
    except UserError:
        if store.record["trials"] and any(t["runs"] for t in store.record["trials"]):
            write_reports(store.path)
        raise
    files = write_reports(store.path)
    if as_json:
        best = json.loads((store.path / BEST_FILE).read_text(encoding="utf-8"))
        print_json(best | {"folder": str(store.path), "report": str(files[0])})
    else:
        print_summary(store.path)
    return 0 if tuner.best is not None else 1


def _limits(arguments: TuneArguments, simulated: bool) -> tuple[float | None, int | None]:
    """Budget in seconds and number of trials, None for no limit."""
    budget, trials = arguments.budget, arguments.trials
    if budget is None and trials is None:
        budget = DEFAULT_BUDGET
        trials = DEFAULT_SIMULATED_TRIALS if simulated else None
    return None if budget is None else parse_duration_s("--budget", budget), trials


def _space(arguments: TuneArguments, fixed: Settings, target: BundledTarget) -> SearchSpace:
    held = [parse_assignment(text)[0] for text in arguments.set]
    # The largest step that is searched needs the most memory, so every setting of the space has room.
    largest_step = 16384 if target.on_gpu else 4096
    space = default_space(
        fixed,
        held,
        on_gpu=target.on_gpu,
        smallest_utilization=target.smallest_utilization(fixed, largest_step),
        max_resident_requests=target.max_resident_requests(fixed, 0.95),
    )
    return with_search(space, arguments.search)


def _new_record(
    arguments: TuneArguments,
    target: BundledTarget,
    slo: Slo,
    space: SearchSpace,
    limits: tuple[float | None, int | None],
    lengths: RunLengths,
) -> dict[str, Any]:
    return {
        "tool_version": tool_version(),
        "simulated": target.simulated,
        "model": target.describe_model(),
        "device": target.describe_device(),
        "environment": target.environment,
        "workload": target.spec.to_dict(),
        "slo": str(slo),
        "seed": arguments.seed,
        "command": "",
        "options": {
            "rate": arguments.parse_rate() or "auto",
            "budget_s": limits[0],
            "trials": limits[1],
            "window_s": lengths.window_s,
            "warmup_s": lengths.warmup_s,
            "sampler": "tpe",
            "space": space.to_dict(),
            "arguments": asdict(arguments) | {"device": target.options.device, "model": target.options.model},
            "command": ["tune", *_without_out(sys.argv[1:])],
        },
        "state": "running",
        "reason": None,
        "elapsed_s": 0.0,
        "trials": [],
        "importance": {},
        "best": None,
        "confirmation": None,
    }


def _without_out(words: Sequence[str]) -> list[str]:
    """The command line without its --out, whose folder exists by the time someone repeats it."""
    kept, skip = [], False
    for word in words:
        if not skip and word != "--out" and not word.startswith("--out="):
            kept.append(word)
        skip = word == "--out"
    return kept


def _resumed_arguments(store: StudyStore, given: TuneArguments) -> TuneArguments:
    """The options that the study was started with; only its limits may be raised.

    Raises:
        UserError: other options were given, or the record does not hold its own.
    """
    allowed = {"budget": None, "trials": None}
    if replace(given, **allowed) != TuneArguments(slo=[], goodput=[]):  # type: ignore[arg-type]
        raise UserError("--resume takes the study's own options: give only --budget or --trials beside it")
    try:
        stored = TuneArguments(**store.record["options"]["arguments"])
    except (KeyError, TypeError) as error:
        raise UserError(f"{store.path} cannot be resumed: its study.json does not hold its options ({error})") from None
    if given.budget is None and given.trials is None:
        if store.record["state"] == "complete":
            raise UserError(f"the study {store.path} is complete: give a larger --budget or --trials to go on with it")
        return stored
    # The window was chosen by the first budget; runs stay comparable only when it stays.
    window = stored.window or f"{store.record['options']['window_s']:.3f}s"
    return replace(stored, budget=given.budget or stored.budget, trials=given.trials or stored.trials, window=window)


def _say_what(runner: Runner) -> None:
    target, memory = runner.target, runner.target.engine.kv_budget
    assert memory is not None
    simulated = " (simulated)" if target.simulated else ""
    tokens = target.engine.num_blocks * target.engine.cache_config.block_size
    say = runner.display.say
    say(f"{target.source.name} on {target.executor.device_name}{simulated}, workload {target.spec.name}")
    say(
        f"memory {memory.total / GIB:.1f} GiB: weights {memory.weights / GIB:.2f}, activations "
        f"{memory.peak_activation / GIB:.2f}, KV cache {memory.kv_bytes / GIB:.2f} GiB = {tokens} tokens"
    )
    say(f"objective {runner.slo}; windows of {runner.lengths.window_s:.0f}s; results in {runner.store.path}")
