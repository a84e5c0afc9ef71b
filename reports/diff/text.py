"""What a diff says, in words: the headline, each line, what moved. Every output shows the same."""

from collections.abc import Sequence

from reports.diff.diff import CANNOT_TELL, REGRESSION, Diff, Line, Verdict
from reports.diff.exact import ROUNDING
from reports.diff.moved import Change, Moved
from reports.diff.side import Side
from reports.format import DASH, change, count, is_known, milliseconds, number, plain, required_percent, seconds, text
from reports.view import Headline, Tone

# So many worse lines are named in the headline, and so many columns of the first step that differs.
MOST_NAMED = 3
MOST_COLUMNS = 5

_NS_PER_MS = 1e6


def headline(diff: Diff) -> Headline:
    """The overall verdict in one sentence."""
    base, new = text(diff.base.name), text(diff.new.name)
    if diff.exit_code == REGRESSION:
        causes = _named(diff, Verdict.WORSE)
        if diff.slo is not None and diff.slo.gated and diff.slo.verdict is Verdict.WORSE:
            causes.insert(0, f"the SLO {text(diff.slo.slo)} was met and is missed now")
        if not causes:
            first = next(line for moved in diff.moved if moved for line in moved_lines(moved))
            sentence = f"Regression: {new} does not behave exactly as {base}, which --exact asks for. {first}"
            return Headline(sentence, Tone.BAD, diff.notices)
        return Headline(f"Regression: {new} is worse than {base}: {_some(causes)}.", Tone.BAD, diff.notices)
    if diff.exit_code == CANNOT_TELL:
        causes = [f"{len(diff.distrust)} of the runs cannot be relied on"] if diff.distrust else []
        if diff.slo is not None and diff.slo.gated and diff.slo.verdict is Verdict.CANNOT_TELL:
            causes.append(f"the SLO was {diff.slo.base} and is {diff.slo.new} now")
        causes += _named(diff, Verdict.CANNOT_TELL)
        return Headline(f"Cannot tell whether {new} is worse than {base}: {_some(causes)}.", Tone.WARN, diff.notices)
    if diff.exact and not any(diff.moved):
        return Headline(f"No regression: {new} behaves exactly as {base}, step by step.", Tone.GOOD, diff.notices)
    better = _named(diff, Verdict.BETTER)
    if better:
        return Headline(f"No regression: {new} is better than {base}: {_some(better)}.", Tone.GOOD, diff.notices)
    if any(line.rule for line in diff.gated):
        return Headline(f"No regression: {new} stays within every limit given.", Tone.GOOD, diff.notices)
    within = "" if diff.exact else f" within {required_percent(diff.margin)}"
    return Headline(f"No regression: {new} is the same as {base}{within} in what is judged.", Tone.GOOD, diff.notices)


def _named(diff: Diff, verdict: Verdict) -> list[str]:
    return [_named_line(line, diff) for line in diff.gated if line.verdict is verdict]


def _named_line(line: Line, diff: Diff) -> str:
    """With its difference, or with the reason where there is none or where it is worse all the same."""
    found = difference(line, diff)
    if line.reason and (line.verdict is Verdict.WORSE or not found):
        return f"{line.metric.title} {line.reason}"
    return f"{line.metric.title} {found}".strip()


def _some(causes: Sequence[str]) -> str:
    more = len(causes) - MOST_NAMED
    return "; ".join(causes[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def label(line: Line) -> str:
    """What a line is called: the rule it was judged by, else its metric."""
    return str(line.rule) if line.rule else line.metric.title


def difference(line: Line, diff: Diff) -> str:
    """The change of a line with its interval: +12.3% (+8.1% to +16.7%)."""
    if not is_known(line.change):
        return ""

    def write(value: float | None) -> str:
        if not line.relative:
            return _signed(value)
        return _exact_change(value) if diff.exact else change(value)

    if not is_known(line.low) or not is_known(line.high) or (diff.exact and line.high - line.low <= ROUNDING):
        return write(line.change)
    return f"{write(line.change)} ({write(line.low)} to {write(line.high)})"


def _signed(value: float | None) -> str:
    written = number(value)
    return f"+{written}" if is_known(value) and value > 0 else written


def _exact_change(relative: float | None) -> str:
    """Digits enough to see the smallest difference that counts."""
    if not is_known(relative):
        return DASH
    return "0%" if abs(relative) <= ROUNDING else f"{_signed(relative * 100)}%"


def side_line(side: Side) -> str:
    """What a side is: its runs and when they were made."""
    created = text(side.meta.get("created"))[:16].replace("T", " ")
    parts = [f"{count(len(side.runs))} run" + "s" * (len(side.runs) != 1)]
    if len(side.runs) > 1:
        parts += [f"{len(values)} {name}" + "s" * (len(values) != 1) for name, values in _groups(side)]
    return f"{text(side.name)}: {', '.join(parts)}, {created}"


def _groups(side: Side) -> tuple[tuple[str, tuple[object, ...]], ...]:
    return ("seed", side.seeds), ("session", side.sessions)


def moved_lines(moved: Moved) -> tuple[str, ...]:
    """What moved under one seed's traffic, a sentence each; one sentence when nothing did."""
    if not moved:
        return (f"Seed {moved.seed}: nothing moved in {count(moved.total_steps)} iterations.",)
    lines = []
    if moved.first_step is not None:
        first = moved.first_step
        columns = _changes(first.changes) if first.changes else "only one side has it"
        lines.append(
            f"Seed {moved.seed}: {count(moved.steps)} of {count(moved.total_steps)} iterations differ, first number "
            f"{count(first.number)}: {columns}."
        )
    if moved.requests:
        lines.append(
            f"Seed {moved.seed}: {count(moved.requests)} of {count(moved.total_requests)} requests differ"
            f"{_first_request(moved)}."
        )
    if moved.counters:
        lines.append(f"Seed {moved.seed}, totals: {_changes(moved.counters)}.")
    return tuple(lines)


def _first_request(moved: Moved) -> str:
    first = moved.first_request
    if first is None:
        return "; all were admitted as before"
    if first.reordered:
        places = ["never" if p is None else f"number {count(p)}" for p in (first.base_place, first.new_place)]
        return f"; the order of admission changed at {text(first.request_id)}: it was {places[0]} and is {places[1]}"
    assert first.base_ns is not None
    assert first.new_ns is not None
    late_ns = first.new_ns - first.base_ns
    when = f"{milliseconds(abs(late_ns) / _NS_PER_MS)} {'later' if late_ns > 0 else 'earlier'}"
    return (
        f"; the order of admission is the same, the first admitted at another time is {text(first.request_id)}, {when}"
    )


def _changes(changes: Sequence[Change]) -> str:
    # What the scheduler decided explains more than when it did.
    ranked = sorted(changes, key=lambda one: _is_time(one.name))
    more = len(ranked) - MOST_COLUMNS
    listed = ", ".join(
        f"{one.name.removesuffix('_ns')} {_value(one.name, one.base)} against {_value(one.name, one.new)}"
        for one in ranked[:MOST_COLUMNS]
    )
    return listed + (f", and {more} more" if more > 0 else "")


def _is_time(name: str) -> bool:
    return name.startswith("t_") or name.endswith("_ns")


def _value(name: str, value: object) -> str:
    if _is_time(name) and is_known(value):
        return seconds(value / 1e9)
    return count(value) if is_known(value) else plain(value)
