"""A metric of two simulated sides under the same traffic: runs come out the same again, so any difference is real."""

from dataclasses import replace
from statistics import fmean

from reports.diff.diff import Line, Verdict
from reports.diff.lacking import exactly_lacking
from reports.diff.measured import missing_text
from reports.diff.metrics import Metric
from reports.diff.rules import Rule
from reports.diff.scale import scale_for
from reports.diff.side import Side

# Room for rounding where a number was computed in another order.
ROUNDING = 1e-6


def exact_line(metric: Metric, rule: Rule | None, base: Side, new: Side, *, gated: bool) -> Line:
    """The metric by the mean over the seeds that both sides have; the interval is the range over them.

    Args:
        gated: the line gets a verdict: by the rule where there is one, else any difference is better or worse.
    """
    line = _line_of_common(metric, rule, base, new, gated=gated)
    return exactly_lacking(line, base, new) if gated else line


def _line_of_common(metric: Metric, rule: Rule | None, base: Side, new: Side, *, gated: bool) -> Line:
    """By the seeds whose runs have the metric on both sides."""
    ours, theirs = _by_seed(metric, base), _by_seed(metric, new)
    seeds = [seed for seed in ours if seed in theirs]
    line = Line(metric, None, None, rule=rule, gated=gated)
    if not seeds:
        reason = missing_text(base, new, in_base=bool(ours), in_new=bool(theirs))
        neither = not (ours or theirs or rule)
        return replace(
            line,
            base=fmean(ours.values()) if ours else None,
            new=fmean(theirs.values()) if theirs else None,
            verdict=Verdict.NOT_MEASURED if neither else Verdict.CANNOT_TELL if gated else None,
            reason=reason,
        )
    before, now = [ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]
    scale = scale_for(before, now)
    differences = [scale.value(b) - scale.value(a) for a, b in zip(before, now, strict=True)]
    difference = fmean(differences)
    line = replace(
        line,
        base=scale.number(fmean(map(scale.value, before))),
        new=scale.number(fmean(map(scale.value, now))),
        change=scale.change(difference),
        low=scale.change(min(differences)),
        high=scale.change(max(differences)),
        relative=scale.relative,
        units=len(seeds),
    )
    if not gated:
        return line
    if rule is not None:
        beyond = difference - scale.limit(rule.limit)
        fails = beyond > ROUNDING if rule.above else beyond < -ROUNDING
        return replace(line, verdict=Verdict.WORSE if fails else Verdict.FINE)
    if abs(difference) <= ROUNDING:
        return replace(line, verdict=Verdict.SAME)
    return replace(line, verdict=Verdict.WORSE if (difference > 0) == metric.smaller_is_better else Verdict.BETTER)


def _by_seed(metric: Metric, side: Side) -> dict[int, float]:
    """Of each seed the first run: others of it are the same."""
    found: dict[int, float] = {}
    for run in side.trusted:
        value = metric.read(run.record)
        if value is not None:
            found.setdefault(run.seed, value)
    return found
