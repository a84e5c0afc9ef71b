"""A comparison in one honest sentence: who delivered most, who answered soonest, and whether the runs can tell."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reports.comparison import Column, ComparisonFolder, same_decisions
from reports.contrast import ENOUGH, Contrast, Standing, contrast
from reports.format import change, count, interval, milliseconds, request_rate, text, token_rate
from reports.headline import lost_notice, notices
from reports.result_rows import key
from reports.view import Headline, Tone

# Of what the load asks for. The last requests of a window are still being answered when it ends.
KEPT_UP = 0.05
# Medians closer than this are called the same: the load decides them then, not the setting. Shares of requests lost
# that differ by more make latencies of the rest no match for each other.
SAME = 0.01


@dataclass(frozen=True, slots=True)
class _Metric:
    """One number to rank the values by.

    Attributes:
        most: what the best one has.
        sign: 1 where more is better, -1 where less is.
    """

    name: str
    key: str
    write: Callable[[float | None], str]
    most: str
    sign: int


_GOODPUT = _Metric("goodput", "request_goodput", request_rate, "highest", 1)
_OUTPUT = _Metric("output throughput", "sustained_throughput", token_rate, "highest", 1)
_TTFT = _Metric("p95 TTFT", "p95_ttft_ms", milliseconds, "lowest", -1)


def comparison_headline(folder: ComparisonFolder) -> Headline:
    """The verdict of a comparison."""
    option, measured = text(folder.comparison["option"]), folder.measured
    doubtful = bool(folder.invalid or folder.problems)
    warnings = (*notices(folder.comparison), *_warnings(folder))
    if len(measured) < 2:
        few = "Fewer than two values were measured validly: there is nothing to compare yet."
        return Headline(few, Tone.WARN, warnings)
    tone = Tone.WARN if doubtful else Tone.NEUTRAL
    alike = same_decisions(measured)
    if alike and len(alike[0]) == len(measured):
        return Headline(f"{option}: no difference, these values made the same decisions.", tone, warnings)
    warnings += tuple(f"{_and(labels)} made the same decisions." for labels in alike)
    by_goodput = len(_standings(measured, _GOODPUT)) > 1
    said = [_throughput(measured, _GOODPUT if by_goodput else _OUTPUT), _ttft(measured)]
    once = any(len(column.runs) == 1 for column in measured)
    in_doubt = "; a value with one run cannot be told from the others" if once else ""
    return Headline(f"{option}: {'; '.join(part for part in said if part)}{in_doubt}.", tone, warnings)


def _warnings(folder: ComparisonFolder) -> tuple[str, ...]:
    found = []
    if folder.problems:
        found.append(f"{count(len(folder.problems))} of its runs are missing or cannot be read; see Validity.")
    if folder.invalid:
        found.append(f"{count(folder.invalid)} of its runs are not valid and left out of all numbers; see Validity.")
    if folder.comparison["repeats"] == 1:
        found.append("One run per value: how far the numbers vary from run to run is not known.")
    elif folder.comparison["repeats"] < ENOUGH:
        found.append(
            "Two runs per value, too few for an interval: a difference is named where it exceeds what the repeats "
            "differ by."
        )
    summaries = [(f"with {column.label}", _totals(column)) for column in folder.measured]
    return (*found, *lost_notice(summaries))


def _totals(column: Column) -> dict[str, float]:
    return {name: sum(column.by_repeat(key(name)).values()) for name in ("completed", "failed")}


def _lost_shares(columns: Sequence[Column]) -> list[float]:
    totals = [_totals(column) for column in columns]
    return [t["failed"] / scheduled if (scheduled := sum(t.values())) else 0.0 for t in totals]


def _standings(columns: Sequence[Column], metric: _Metric) -> list[Standing]:
    known = [(column.label, column.by_repeat(key(metric.key))) for column in columns]
    return [Standing(label, by_repeat) for label, by_repeat in known if by_repeat]


def _throughput(columns: Sequence[Column], metric: _Metric) -> str:
    standings = _standings(columns, metric)
    if len(standings) < 2:
        return ""
    if metric is _OUTPUT and all(map(_keeps_up, columns)):
        most = max(standing.middle for standing in standings)
        return f"every value keeps up with this load, about {_OUTPUT.write(most)}"
    return _ranking(metric, standings)


def _keeps_up(column: Column) -> bool:
    """Every run delivered what its load asked for, and lost nothing of it."""
    offered, sustained = (column.by_repeat(key(f"{which}_throughput")) for which in ("offered", "sustained"))
    delivered = all(sustained.get(repeat, 0.0) * (1 + KEPT_UP) >= asked for repeat, asked in offered.items())
    return bool(offered) and delivered and not _totals(column)["failed"]


def _ttft(columns: Sequence[Column]) -> str:
    standings = _standings(columns, _TTFT)
    if len(standings) < 2:
        return ""
    lost = _lost_shares(columns)
    if max(lost) - min(lost) > SAME:
        return "p95 TTFT is not ranked, since these values lost different shares of the requests"
    return _ranking(_TTFT, standings)


def _nearly_same(standings: Sequence[Standing]) -> bool:
    """In the median and in every repeat, so that runs which scatter are not called the same for a lucky median."""
    repeats = {repeat for standing in standings for repeat in standing.by_repeat}
    groups = [[s.by_repeat[repeat] for s in standings if repeat in s.by_repeat] for repeat in repeats]
    return all(max(group) <= min(group) * (1 + SAME) for group in (*groups, [s.middle for s in standings]))


def _ranking(metric: _Metric, standings: Sequence[Standing]) -> str:
    """The best value in one number against the worst that the runs can tell from it."""
    ranked = sorted(standings, key=lambda s: -metric.sign * s.middle)
    best, others = ranked[0], ranked[1:]
    if _nearly_same(standings):
        return f"the same {metric.name} with every value, about {metric.write(best.middle)}"
    pairs = len(standings) * (len(standings) - 1) // 2
    against = [(other, contrast(best, other, pairs)) for other in others]
    apart = [(other, found) for other, found in against if found.told_apart]
    other, found = (apart or against)[-1]
    reference = f"{metric.write(other.middle)} with {_and(_as_good_as(other, others))}"
    if not apart:
        values = f"{metric.write(best.middle)} with {best.label} against {reference}"
        return f"no difference in {metric.name} that the runs can tell from chance, {values}{_evidence(found)}"
    relative = f"{change(found.change)} " if found.change is not None else ""
    same = _as_good_as(best, others)
    unclear = [other.label for other, found in against if not found.told_apart and other.label not in same]
    who, best_value = best.label, metric.write(best.middle)
    if unclear:
        who, best_value = _or([best.label, *unclear]), f"{best_value} with {best.label}"
    which = " (the runs cannot tell which)" if unclear else ""
    said = f"{who} had the {metric.most} {metric.name}{which}, {best_value}, {relative}against {reference}"
    return said + _evidence(found) + (f", as with {_and(same)}" if same else "")


def _as_good_as(one: Standing, among: Sequence[Standing]) -> list[str]:
    return [standing.label for standing in among if standing.middle == one.middle]


def _evidence(found: Contrast) -> str:
    if found.low is not None:
        return f" (95% interval {interval(found.low, found.high, change)}, {count(found.repeats)} repeats)"
    if found.repeats == 0:
        return " (no repeat in common)"
    if found.repeats == 1:
        return ""
    if found.changes:
        return f" ({_and([change(one) for one in found.changes])} in the repeats)"
    return f" ({count(found.repeats)} repeats)"


def _and(words: Sequence[str]) -> str:
    return _listed(words, "and")


def _or(words: Sequence[str]) -> str:
    return _listed(words, "or")


def _listed(words: Sequence[str], last: str) -> str:
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else words[0]
