"""The judgement: two sides brought together, every metric compared, and what the exit code depends on.

What a difference means is for `gate` to say, how far it can be off for `spread`.
"""

from collections.abc import Sequence
from dataclasses import replace

from engine.errors import UserError
from reports.diff.comparable import differences
from reports.diff.diff import Diff, Line, Verdict
from reports.diff.exact import exact_line
from reports.diff.gate import by_default, by_rules, shown_line
from reports.diff.measured import measure
from reports.diff.metrics import GOODPUT, Metric, metrics_of
from reports.diff.moved import what_moved
from reports.diff.notices import notices_of
from reports.diff.rules import Rule
from reports.diff.side import Recorded, Side
from reports.diff.slo_line import slo_line

MARGIN = 0.10


def judge(
    base: Side,
    new: Side,
    *,
    rules: Sequence[Rule] = (),
    noise: Sequence[Side] = (),
    margin: float = MARGIN,
    strict: bool = False,
) -> Diff:
    """Hold `new` against `base`. Whether they can be compared is asked before (`comparable.require_comparable`).

    Args:
        rules: what counts as a regression, in place of the default gate.
        noise: further sides whose repeats tell how much runs vary by themselves. Those that were measured on another
            device, or under another load, are left out.
        margin: relative change that must not go unseen: a metric is `same` only when its interval lies within.
        strict: anything that moved between simulated sides is a regression, improvements too.

    Raises:
        UserError: nothing was measured on both sides, or `strict` where a side was not simulated or no traffic is
            shared.
    """
    shared = [seed for seed in base.seeds if seed in new.seeds]
    exact = base.simulated and new.simulated and bool(shared)
    if strict and not exact:
        why = "they share no seed" if base.simulated and new.simulated else "not both were simulated"
        raise UserError(f"--exact compares simulated sides under the same traffic, step by step; {why}")
    judged, shown = metrics_of(base.meta.get("slo") or new.meta.get("slo"), [rule.metric for rule in rules])
    _require_common(base, new, [*judged, *shown])
    alike = base.meta.get("slo") == new.meta.get("slo")
    if not alike:
        shown = [*(metric for metric in judged if metric.name == GOODPUT), *shown]
        judged = [metric for metric in judged if metric.name != GOODPUT]
    gate: list[tuple[Metric, Rule | None]] = [(metric, None) for metric in judged]
    if rules:
        by_name = {metric.name: metric for metric in (*judged, *shown)}
        gate = [(by_name[rule.metric], rule) for rule in dict.fromkeys(rules)]
        shown = [metric for metric in (*judged, *shown) if metric.name not in {rule.metric for rule in rules}]
    others = [side for side in noise if side is not base and side is not new]
    usable = [side for side in others if not differences(base, side).refused]
    left_out = [side for side in others if side not in usable]
    if exact:
        lines = [exact_line(metric, rule, base, new, gated=True) for metric, rule in gate]
        lines += [exact_line(metric, None, base, new, gated=False) for metric in shown]
    else:
        gated = [(metric, rule, measure(metric, base, new, usable)) for metric, rule in gate]
        lines = by_rules(gated) if rules else by_default(gated, margin)
        lines += [shown_line(metric, measure(metric, base, new, usable)) for metric in shown]
    if not alike:
        lines = [_of_two_slos(line) for line in lines]
    found = differences(base, new)
    distrust = tuple(
        f"{side.name}, seed {run.seed}: {run.distrust}" for side in (base, new) for run in side.runs if run.distrust
    )
    moved = [what_moved(seed, _first(base, seed), _first(new, seed)) for seed in shared] if exact else []
    return Diff(
        base=base,
        new=new,
        differences=found,
        lines=tuple(lines),
        slo=slo_line(base, new, gated=not rules and alike),
        moved=tuple(moved),
        exact=exact,
        strict=strict,
        distrust=distrust,
        notices=notices_of(base, new, found, lines, left_out),
        margin=margin,
    )


def _of_two_slos(line: Line) -> Line:
    """Goodput counts other requests on each side; a rule about it cannot be answered."""
    if not line.gated or line.metric.name != GOODPUT:
        return line
    return replace(line, verdict=Verdict.CANNOT_TELL, reason="the sides were measured under two SLOs")


def _require_common(base: Side, new: Side, metrics: Sequence[Metric]) -> None:
    def known(side: Side) -> set[str]:
        return {m.name for m in metrics for run in side.runs if m.read(run.record) is not None}

    if not known(base) & known(new):
        raise UserError(
            f"{base.name} and {new.name} have nothing in common to compare: no metric was measured on both sides"
        )


def _first(side: Side, seed: int) -> Recorded:
    return next(run.record for run in side.runs if run.seed == seed)
