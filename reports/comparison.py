"""A comparison's folder, read and checked: its own record and every run that can still be read.

Runs that are not valid are kept apart, so that no number is taken from them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UserError
from reports.format import is_known
from reports.result_rows import Read
from reports.settings import setting_text
from reports.shape import Shape, read_record, require_shape
from reports.study import load_run
from reports.waited import window_requests
from workloads.records import RunRecord

COMPARISON_FILE = "comparison.json"

_SHAPE: Shape = {
    "model": dict,
    "device": (dict, type(None)),
    "workload": (dict, type(None)),
    "environment": (dict, type(None)),
    "slo": (str, type(None)),
    "command": (str, type(None)),
    "option": str,
    "values": list,
    "settings": dict,
    "rate": (int, float, type(None)),
    "repeats": int,
    "runs": list,
}
_RUN_SHAPE: Shape = {"repeat": int, "path": str}
_FAILURE_SHAPE: Shape = {"reason": str}


@dataclass(frozen=True, slots=True)
class Column:
    """One value of the option compared, and its runs.

    Attributes:
        label: the value as a table shows it.
        repeats, runs: the valid runs in order of repetition, from 0. Those of one repeat have the same seed under
            every value.
        summaries: theirs, each with `sustained_throughput` and `offered_throughput` added.
        invalid: (repeat, run) of those that can be read but are not valid.
    """

    label: str
    repeats: tuple[int, ...]
    runs: tuple[RunRecord, ...]
    summaries: tuple[Mapping[str, Any], ...]
    invalid: tuple[tuple[int, RunRecord], ...] = ()

    def by_repeat(self, read: Read) -> dict[int, float]:
        """A number of every run that has it."""
        pairs = zip(self.repeats, self.summaries, strict=True)
        return {repeat: value for repeat, summary in pairs if is_known(value := read(summary))}


@dataclass(frozen=True)
class ComparisonFolder:
    """A comparison and its runs.

    Attributes:
        path: the comparison's folder.
        comparison: the content of `comparison.json`.
        columns: every value, in order, with or without runs.
        problems: what is missing or cannot be read, and why.
    """

    path: Path
    comparison: dict[str, Any]
    columns: tuple[Column, ...]
    problems: tuple[str, ...]

    @property
    def measured(self) -> tuple[Column, ...]:
        """The values that have a valid run."""
        return tuple(column for column in self.columns if column.runs)

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """Every valid run."""
        return tuple(run for column in self.columns for run in column.runs)

    @property
    def invalid(self) -> int:
        """How many runs can be read but are not valid."""
        return sum(len(column.invalid) for column in self.columns)


def load_comparison(folder: Path) -> ComparisonFolder:
    """Open a comparison's folder. Runs that are missing or damaged are listed, not fatal.

    Raises:
        UserError: `comparison.json` is missing, damaged, or of a schema this version does not read.
    """
    path = folder / COMPARISON_FILE
    comparison = read_record(path, "comparison")
    require_shape(comparison, _SHAPE, str(path))
    option, values = comparison["option"], comparison["values"]
    for i, entry in enumerate(comparison["runs"]):
        require_shape(entry, _RUN_SHAPE, f"{path}: runs[{i}]")
        if entry.get("value") not in values:
            raise UserError(f"{path} is damaged: runs[{i}].value is {entry.get('value')!r}, which is not among values")
    # Early records lack them.
    failures = comparison.get("failures", [])
    require_shape({"failures": failures}, {"failures": list}, str(path))
    for i, failure in enumerate(failures):
        require_shape(failure, _FAILURE_SHAPE, f"{path}: failures[{i}]")
    columns: list[Column] = []
    problems: list[str] = []
    for value in values:
        label = setting_text(option, value)
        entries = sorted((e for e in comparison["runs"] if e["value"] == value), key=lambda e: e["repeat"])
        readable = []
        for entry in entries:
            try:
                readable.append((entry["repeat"], _readable_run(folder / entry["path"])))
            except UserError as error:
                problems.append(f"{entry['path']}: {error}")
        reasons = [failure["reason"] for failure in failures if failure.get("value") == value]
        problems += [f"{option} {label} failed: {reason}" for reason in reasons]
        if len(entries) < comparison["repeats"] and not reasons:
            problems.append(f"{option} {label}: {len(entries)} of {comparison['repeats']} runs were made")
        columns.append(_column(label, readable))
    return ComparisonFolder(folder, comparison, tuple(columns), tuple(problems))


def _column(label: str, readable: Sequence[tuple[int, RunRecord]]) -> Column:
    valid = [(repeat, run) for repeat, run in readable if not _is_invalid(run)]
    invalid = [(repeat, run) for repeat, run in readable if _is_invalid(run)]
    summaries = (
        {
            **run.meta["summary"],
            "sustained_throughput": sustained_throughput(run),
            "offered_throughput": offered_throughput(run),
        }
        for _, run in valid
    )
    repeats, runs = tuple(repeat for repeat, _ in valid), tuple(run for _, run in valid)
    return Column(label, repeats, runs, tuple(summaries), tuple(invalid))


def _is_invalid(run: RunRecord) -> bool:
    return (run.meta.get("validity") or {}).get("valid") is False


def sustained_throughput(run: RunRecord) -> float | None:
    """Output tokens per second that clients received within the window, at most what was offered.

    `output_throughput` counts the tokens of the window's requests whenever they came, so it cannot tell a value that
    fell behind and caught up after the window. What comes within the window may be the backlog of the warm-up; as far
    as it exceeds the load offered it is nothing that could be sustained.
    """
    bounds = _window_ns(run)
    if bounds is None:
        return None
    start_ns, end_ns = bounds
    tokens = sum(
        int(tokens[(times >= start_ns) & (times < end_ns)].sum())
        for times, tokens in zip(run.requests["chunk_times"], run.requests["chunk_tokens"], strict=True)
    )
    received, offered = tokens / ((end_ns - start_ns) / 1e9), offered_throughput(run)
    return received if offered is None else min(received, offered)


def offered_throughput(run: RunRecord) -> float | None:
    """Output tokens per second that the requests scheduled in the window asked for; None in a closed loop, which asks
    for as much as it gets."""
    bounds = _window_ns(run)
    if bounds is None or run.meta.get("rate") is None:
        return None
    asked = window_requests(run.requests)["max_tokens"].sum()
    return float(asked) / ((bounds[1] - bounds[0]) / 1e9)


def _window_ns(run: RunRecord) -> tuple[int, int] | None:
    window = run.meta.get("window") or {}
    start_ns, end_ns = window.get("start_ns"), window.get("end_ns")
    return None if start_ns is None or end_ns is None or end_ns <= start_ns else (start_ns, end_ns)


def same_decisions(columns: Sequence[Column]) -> list[list[str]]:
    """The values, in groups of two and more, under which every simulated run went exactly alike.

    On a real device no two runs do, since their steps never take equally long.
    """
    groups: list[list[Column]] = []
    for column in columns:
        if column.runs and all(run.meta.get("simulated") for run in column.runs):
            alike = next((group for group in groups if _went_alike(group[0], column)), None)
            if alike is None:
                groups.append([column])
            else:
                alike.append(column)
    return [[column.label for column in group] for group in groups if len(group) > 1]


def _went_alike(one: Column, other: Column) -> bool:
    return one.repeats == other.repeats and all(
        a.iterations.equals(b.iterations) and a.request_records() == b.request_records()
        for a, b in zip(one.runs, other.runs, strict=True)
    )


def _readable_run(path: Path) -> RunRecord:
    """A run whose tables can be read too, so that nothing fails later."""
    record = load_run(path)
    len(record.requests)
    len(record.iterations)
    return record
