"""What a difference means: worse, better, the same, or nothing that can be told.

An interval is Student's t, 90 %: either end is wrong in 5 % of cases. `same` is then the two one-sided tests of
equivalence (Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15(6), 1987). `worse` and `better` need more:
several metrics are looked at, so each direction is held to 5 % over all of them together by Holm's step-down
("A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6(2), 1979).
"""

from collections.abc import Sequence
from dataclasses import replace

from reports.diff.diff import Line, Verdict
from reports.diff.estimate import Estimate
from reports.diff.lacking import with_lacking
from reports.diff.measured import Measured
from reports.diff.metrics import Metric
from reports.diff.rules import Rule
from reports.format import required_percent

ALPHA = 0.05
SAME_WITHIN = 0.02

UNKNOWN_NOISE = "how much the machine varies from run to run is not known"

Gated = Sequence[tuple[Metric, Rule | None, Measured]]


def by_default(gated: Gated, margin: float) -> list[Line]:
    """Worse than before, better, the same within the margin, or neither to be told."""
    differs = [up or down for up, down in zip(*_beyond(gated, 0.0), strict=True)]
    lines = []
    for (metric, _, measured), apart, up, down in zip(gated, differs, *_beyond(gated, margin), strict=True):
        line = replace(_line_of(metric, None, measured), gated=True)
        if line.verdict is None:
            worse, better = (up, down) if metric.smaller_is_better else (down, up)
            verdict = Verdict.WORSE if worse else Verdict.BETTER if better else None
            line = _with_verdict(line, verdict, margin, len(gated), apart=apart)
        lines.append(with_lacking(line, measured.lacking))
    return lines


def _beyond(gated: Gated, margin: float) -> tuple[list[bool], list[bool]]:
    """Which metrics went up and which went down by more than chance, and by more than the room there is for them."""
    ups = _holm([_p_value(m.estimate, _room(m, margin), above=True) for _, _, m in gated])
    downs = _holm([_p_value(m.estimate, _room(m, -margin), above=False) for _, _, m in gated])
    return ups, downs


def _room(measured: Measured, margin: float) -> float:
    """The difference on the scale that something else than the change may have made.

    Where the sides were measured at different times, and not often enough to know what that does, it is the margin.
    """
    if measured.scale is None or measured.estimate is None or measured.estimate.has_sessions:
        return 0.0
    return measured.scale.limit(margin)


def _with_verdict(line: Line, verdict: Verdict | None, margin: float, looked_at: int, *, apart: bool) -> Line:
    """The line with its verdict.

    Args:
        verdict: `worse` or `better` where that is proven.
        looked_at: how many metrics there are.
        apart: the sides differ by more than chance.
    """
    assert line.low is not None
    assert line.high is not None
    if not line.relative:
        # The base is 0, and nothing is a share of that.
        equal = line.low == line.high == 0
        return replace(line, verdict=verdict or (Verdict.SAME if equal else Verdict.CANNOT_TELL))
    negligible = max(-line.low, line.high) <= min(SAME_WITHIN, margin)
    within = max(-line.low, line.high) <= margin
    if negligible or (within and not apart):
        return replace(line, verdict=Verdict.SAME)
    if verdict is not None:
        return replace(line, verdict=verdict)
    if line.low <= 0 <= line.high:
        reason = f"the interval reaches beyond the margin of {required_percent(margin)}"
    elif line.has_sessions:
        reason = f"of {looked_at} metrics one looks like this by chance too often"
    else:
        reason = f"up to {required_percent(margin)} may come from having been measured at another time"
    return replace(line, verdict=Verdict.CANNOT_TELL, reason=reason)


def by_rules(gated: Gated) -> list[Line]:
    """Beyond the limit of each rule, on this side of it, or neither to be told."""
    limits = [m.scale.limit(rule.limit) if rule and m.scale else 0.0 for _, rule, m in gated]
    beyond = _holm(
        [
            _p_value(m.estimate, limit, above=bool(rule and rule.above))
            for (_, rule, m), limit in zip(gated, limits, strict=True)
        ]
    )
    lines = []
    for (metric, rule, measured), limit, fails in zip(gated, limits, beyond, strict=True):
        line = replace(_line_of(metric, rule, measured), gated=True)
        if line.verdict is Verdict.NOT_MEASURED:
            line = replace(line, verdict=Verdict.CANNOT_TELL)
        elif line.verdict is None and rule is not None and measured.estimate is not None:
            low, high = measured.estimate.interval(ALPHA)
            passes = high <= limit if rule.above else low >= limit
            verdict = Verdict.WORSE if fails else Verdict.FINE if passes else Verdict.CANNOT_TELL
            reason = "" if verdict is not Verdict.CANNOT_TELL else "the limit lies within the interval"
            line = replace(line, verdict=verdict, reason=reason)
        lines.append(with_lacking(line, measured.lacking))
    return lines


def shown_line(metric: Metric, measured: Measured) -> Line:
    """A line that is not judged."""
    line = _line_of(metric, None, measured)
    return line if line.verdict is Verdict.NOT_MEASURED else replace(line, verdict=None)


def _line_of(metric: Metric, rule: Rule | None, measured: Measured) -> Line:
    """A line with its numbers. It has a verdict already only where there can be no other."""
    line = Line(metric, measured.base, measured.new, rule=rule, reason=measured.missing)
    if measured.scale is None:
        neither = measured.base is None and measured.new is None
        return replace(line, verdict=Verdict.NOT_MEASURED if neither else Verdict.CANNOT_TELL)
    scale, estimate = measured.scale, measured.estimate
    line = replace(line, change=scale.change(measured.difference), relative=scale.relative, has_noise=False)
    if estimate is not None:
        low, high = (scale.change(limit) for limit in estimate.interval(ALPHA))
        line = replace(
            line, low=low, high=high, design=estimate.design, units=estimate.units, freedom=estimate.freedom,
            has_noise=estimate.has_noise, has_sessions=estimate.has_sessions,
        )  # fmt: skip
    if estimate is None or not estimate.has_noise:
        return replace(line, verdict=Verdict.CANNOT_TELL, reason=UNKNOWN_NOISE)
    return line


def _p_value(estimate: Estimate | None, limit: float, *, above: bool) -> float | None:
    if estimate is None or not estimate.has_noise:
        return None
    return estimate.exceeds(limit) if above else estimate.falls_short(limit)


def _holm(p_values: Sequence[float | None]) -> list[bool]:
    """Which hypotheses fall at `ALPHA` over all of them together; those that cannot be tested do not count."""
    ranked = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    fallen = set()
    for step, (p, i) in enumerate(ranked):
        if p > ALPHA / (len(ranked) - step):
            break
        fallen.add(i)
    return [i in fallen for i in range(len(p_values))]
