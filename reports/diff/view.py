"""The tables and lists of a diff, before anyone decides how they look."""

from collections.abc import Sequence

from reports.diff.diff import Diff, Line, Verdict
from reports.diff.text import difference, label, moved_lines, side_line
from reports.format import DASH, text
from reports.settings import setting_text
from reports.view import Table

VERDICT_COLUMN = 4


def gated_table(diff: Diff) -> Table:
    """What the exit code depends on, the SLO first."""
    rows = [_row(line, diff) for line in diff.gated]
    if diff.slo is not None and diff.slo.gated:
        rows.insert(0, ("SLO", diff.slo.base, diff.slo.new, "", diff.slo.verdict.value))
    return _table("Judged", rows, diff)


def shown_table(diff: Diff) -> Table:
    """The other metrics that either side has."""
    lines = [line for line in diff.lines if not line.gated and line.verdict is not Verdict.NOT_MEASURED]
    rows = [_row(line, diff) for line in lines]
    if diff.slo is not None and not diff.slo.gated:
        rows.insert(0, ("SLO", diff.slo.base, diff.slo.new, "", ""))
    return _table("Beside it", rows, diff)


def settings_table(diff: Diff) -> Table | None:
    """The settings that differ; None when none does."""
    changed = diff.differences.settings
    if not changed:
        return None
    rows = tuple((text(d.what), setting_text(d.what, d.base), setting_text(d.what, d.new)) for d in changed)
    return Table(("Setting", "base", "new"), rows, numeric=frozenset({1, 2}))


def compared(diff: Diff) -> tuple[str, ...]:
    """What was held against what, and what else differs."""
    lines = [f"base  {side_line(diff.base)}", f"new   {side_line(diff.new)}"]
    if not diff.differences.settings:
        lines.append("The settings are the same.")
    if diff.differences.environment:
        lines.append(f"The environment differs: {'; '.join(map(str, diff.differences.environment))}.")
    return tuple(lines)


def reasons(diff: Diff) -> tuple[str, ...]:
    """Why lines that could not be judged could not, and what the SLO's bounds came to."""
    told: dict[str, list[str]] = {}
    for line in diff.gated:
        if line.reason:
            told.setdefault(line.reason, []).append(label(line))
    found = [f"{', '.join(names)}: {reason}." for reason, names in told.items()]
    if diff.slo is not None and diff.slo.gated and diff.slo.verdict is not Verdict.SAME:
        found.insert(0, f"SLO on the new side: {diff.slo.detail}.")
    return (*(f"Left out: {reason}." for reason in diff.distrust), *found)


def moved(diff: Diff) -> tuple[str, ...]:
    """What moved step by step, by seed."""
    return tuple(line for one in diff.moved for line in moved_lines(one))


def _table(title: str, rows: Sequence[tuple[str, ...]], diff: Diff) -> Table:
    beside = "90% interval"
    if diff.exact:
        beside = "over the seeds" if len(diff.moved) > 1 else ""
    difference_title = f"difference ({beside})" if beside else "difference"
    return Table((title, "base", "new", difference_title, ""), tuple(rows), numeric=frozenset({1, 2, 3}))


def _row(line: Line, diff: Diff) -> tuple[str, ...]:
    verdict = "" if line.verdict is None else line.verdict.value
    return (
        label(line),
        line.metric.write(line.base),
        line.metric.write(line.new),
        difference(line, diff) or DASH,
        verdict,
    )
