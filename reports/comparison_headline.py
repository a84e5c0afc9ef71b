"""A comparison in one honest sentence: who delivered most, who answered soonest, and whether the runs can tell."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from reports.comparison import Column, ComparisonFolder
from reports.format import change, count, interval, is_known, milliseconds, percent, text, token_rate
from reports.headline import notices
from reports.view import Headline, Tone

# Medians closer than this are called the same: the load decides them then, not the setting.
SAME = 0.01


@dataclass(frozen=True, slots=True)
class _Standing:
    """One value's standing in one number: median and range over its runs."""

    label: str
    middle: float
    low: float
    high: float

    def overlaps(self, other: "_Standing") -> bool:
        return self.low <= other.high and other.low <= self.high


def comparison_headline(folder: ComparisonFolder) -> Headline:
    """The verdict of a comparison."""
    comparison = folder.comparison
    warnings = notices(comparison)
    if folder.problems:
        warnings += (f"{count(len(folder.problems))} of its runs are missing or cannot be read; see Validity.",)
    invalid = sum((run.meta.get("validity") or {}).get("valid") is False for run in folder.runs)
    if invalid:
        warnings += (f"{count(invalid)} of its runs are not valid: do not rely on their numbers; see Validity.",)
    if comparison["repeats"] == 1:
        warnings += ("One run per value: how far the numbers vary from run to run is not known.",)
    warnings += _unfinished(folder)
    throughput, asked = _standings(folder, "sustained_throughput"), _standings(folder, "output_throughput")
    ttft = _standings(folder, "p95_ttft_ms")
    if len(throughput) < 2:
        return Headline("Fewer than two values were measured: there is nothing to compare yet.", Tone.WARN, warnings)
    sentence = f"{text(comparison['option'])}: {_throughput(throughput, asked)}{_ttft(ttft)}."
    return Headline(sentence, Tone.WARN if invalid or folder.problems else Tone.NEUTRAL, warnings)


def _unfinished(folder: ComparisonFolder) -> tuple[str, ...]:
    """Latencies leave out what never completed, which flatters a value that turns many away."""
    shares = {column.label: _failed_share(column) for column in folder.measured}
    worst = {label: share for label, share in shares.items() if share > SAME}
    if not worst:
        return ()
    listed = ", ".join(f"{percent(share)} with {label}" for label, share in worst.items())
    return (f"Latencies are those of completed requests; not completed were {listed}.",)


def _failed_share(column: Column) -> float:
    failed = sum(run.meta["summary"].get("failed") or 0 for run in column.runs)
    total = failed + sum(run.meta["summary"].get("completed") or 0 for run in column.runs)
    return failed / total if total else 0.0


def _standings(folder: ComparisonFolder, key: str) -> list[_Standing]:
    found = []
    for column in folder.measured:
        values = [value for summary in column.summaries if is_known(value := summary.get(key))]
        if values:
            found.append(_Standing(column.label, median(values), min(values), max(values)))
    return found


def _throughput(standings: list[_Standing], asked: list[_Standing]) -> str:
    """The highest against the lowest output throughput.

    Args:
        standings: in what was sustained.
        asked: in all output of the window's requests.
    """
    best = max(standings, key=lambda s: s.middle)
    lowest = min(standings, key=lambda s: s.middle)
    if best.middle <= lowest.middle * (1 + SAME):
        kept_up = lowest.middle * (1 + SAME) >= max(s.middle for s in asked)
        limit = ", all that this load asks for" if kept_up else ""
        return f"the same output throughput with every value, about {token_rate(best.middle)}{limit}"
    over = f"{change(best.middle / lowest.middle - 1)} " if lowest.middle > 0 else ""
    said = (
        f"{best.label} had the highest output throughput, {_with_range(best, token_rate)}, {over}over the lowest, "
        f"{_with_range(lowest, token_rate)} with {lowest.label}"
    )
    return said + _doubt(best, [s for s in standings if s is not best])


def _ttft(standings: list[_Standing]) -> str:
    if len(standings) < 2:
        return ""
    best = min(standings, key=lambda s: s.middle)
    others = [s for s in standings if s is not best]
    return f"; the lowest p95 TTFT came with {best.label}, {_with_range(best, milliseconds)}{_doubt(best, others)}"


def _with_range(standing: _Standing, write: Callable[[float | None], str]) -> str:
    if standing.low == standing.high:
        return write(standing.middle)
    return f"{write(standing.middle)} ({interval(standing.low, standing.high, write)})"


def _doubt(best: _Standing, others: list[_Standing]) -> str:
    """Which of the others are as good, and which the runs cannot tell from the best."""
    same = [s.label for s in others if s.middle == best.middle]
    alike = [s.label for s in others if s.overlaps(best) and s.label not in same]
    text = f", as with {' and '.join(same)}" if same else ""
    return text + (f", no different from {' and '.join(alike)} within the spread of the runs" if alike else "")
