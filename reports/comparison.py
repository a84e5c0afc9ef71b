"""A comparison's folder, read and checked: its own record and every run that can still be read."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UserError
from reports.settings import setting_text
from reports.shape import Shape, read_record, require_shape
from reports.study import load_run
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
        runs: those that can be read, in order of repetition.
        summaries: theirs, each with `sustained_throughput` added.
    """

    label: str
    runs: tuple[RunRecord, ...]
    summaries: tuple[Mapping[str, Any], ...]


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
        """The values that have a run."""
        return tuple(column for column in self.columns if column.runs)

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """Every run that can be read."""
        return tuple(run for column in self.columns for run in column.runs)


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
    failures = comparison.get("failures") or []
    for i, failure in enumerate(failures):
        require_shape(failure, _FAILURE_SHAPE, f"{path}: failures[{i}]")
    columns: list[Column] = []
    problems: list[str] = []
    for value in values:
        label = setting_text(option, value)
        entries = sorted((e for e in comparison["runs"] if e["value"] == value), key=lambda e: e["repeat"])
        runs = []
        for entry in entries:
            try:
                runs.append(_readable_run(folder / entry["path"]))
            except UserError as error:
                problems.append(f"{entry['path']}: {error}")
        reasons = [failure["reason"] for failure in failures if failure.get("value") == value]
        problems += [f"{option} {label} failed: {reason}" for reason in reasons]
        if len(entries) < comparison["repeats"] and not reasons:
            problems.append(f"{option} {label}: {len(entries)} of {comparison['repeats']} runs were made")
        summaries = (run.meta["summary"] | {"sustained_throughput": sustained_throughput(run)} for run in runs)
        columns.append(Column(label, tuple(runs), tuple(summaries)))
    return ComparisonFolder(folder, comparison, tuple(columns), tuple(problems))


def sustained_throughput(run: RunRecord) -> float | None:
    """Output tokens per second that the engine kept up with: received by clients within the window, at most its own.

    `output_throughput` counts the tokens of the window's requests whenever they came, so it cannot tell a value that
    fell behind and caught up after the window. What came within the window can exceed it, by the backlog of the
    warm-up, which is nothing that could be sustained. The smaller of both is free of either.
    """
    window, its_own = run.meta.get("window") or {}, run.meta["summary"].get("output_throughput")
    start_ns, end_ns = window.get("start_ns"), window.get("end_ns")
    if its_own is None or start_ns is None or end_ns is None or end_ns <= start_ns:
        return None
    tokens = sum(
        int(tokens[(times >= start_ns) & (times < end_ns)].sum())
        for times, tokens in zip(run.requests["chunk_times"], run.requests["chunk_tokens"], strict=True)
    )
    return min(its_own, tokens / ((end_ns - start_ns) / 1e9))


def _readable_run(path: Path) -> RunRecord:
    """A run whose tables can be read too, so that nothing fails later."""
    record = load_run(path)
    len(record.requests)
    len(record.iterations)
    return record
