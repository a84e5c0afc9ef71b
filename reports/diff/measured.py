"""One metric of both sides, brought together: its numbers, the scale they are compared on, and the estimate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from reports.diff.estimate import Estimate, Reading
from reports.diff.lacking import Lacking, lacking
from reports.diff.metrics import Metric
from reports.diff.resample import by_requests
from reports.diff.scale import Scale, scale_for
from reports.diff.side import Recorded, Side
from reports.diff.spread import estimate, repeats_of


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric of two sides.

    Attributes:
        base, new: in the metric's unit, over the runs that are compared; None where not measured.
        scale: None when one of them is.
        estimate: None as well where the runs say nothing of how far the difference can be off.
        missing: why there is nothing to compare; empty when there is.
        lacking: the runs that have no number although there should be one; None without such.
    """

    base: float | None
    new: float | None
    scale: Scale | None = None
    estimate: Estimate | None = None
    missing: str = ""
    lacking: Lacking | None = None

    @property
    def difference(self) -> float:
        """On the scale. There has to be one."""
        if self.estimate is not None:
            return self.estimate.difference
        assert self.scale is not None
        assert self.base is not None
        assert self.new is not None
        return self.scale.value(self.new) - self.scale.value(self.base)


def measure(metric: Metric, base: Side, new: Side, noise: Sequence[Side] = ()) -> Measured:
    """Read a metric from both sides and compare it.

    Args:
        noise: further sides whose repeats tell how much runs vary by themselves.
    """
    return replace(_compared(metric, base, new, noise), lacking=lacking(metric, base, new))


def _compared(metric: Metric, base: Side, new: Side, noise: Sequence[Side]) -> Measured:
    """The runs that have the metric."""
    ours, theirs = _numbers(metric, base), _numbers(metric, new)
    if not ours or not theirs:
        return Measured(
            _mean(ours), _mean(theirs), missing=missing_text(base, new, in_base=bool(ours), in_new=bool(theirs))
        )
    others = [_numbers(metric, side) for side in noise]
    scale = scale_for([r.value for r in ours], [r.value for side in (theirs, *others) for r in side])
    readings = [[replace(r, value=scale.value(r.value)) for r in side] for side in (ours, theirs, *others)]
    found = estimate(readings[0], readings[1], readings[2:]) or _of_requests(metric, scale, base, new, readings)
    if found is None:
        return Measured(_mean(ours), _mean(theirs), scale)
    if base.simulated and new.simulated:
        # There is no machine that could have been another one at another time.
        found = replace(found, has_sessions=True)
    return Measured(scale.number(found.base), scale.number(found.new), scale, found)


def run_noise(metric: Metric, side: Side) -> tuple[float, int] | None:
    """How much a metric varies between runs of the same traffic in the same session.

    Returns:
        The relative standard deviation of one run (in the metric's unit where its mean is 0) and its degrees of
        freedom; None without a repeat.
    """
    numbers = _numbers(metric, side)
    if not numbers:
        return None
    scale = scale_for([r.value for r in numbers], ())
    squares = repeats_of([[replace(r, value=scale.value(r.value)) for r in numbers]])
    return (math.sqrt(squares.mean), squares.freedom) if squares.freedom else None


def _numbers(metric: Metric, side: Side) -> list[Reading]:
    found = ((run, metric.read(run.record)) for run in side.trusted)
    return [Reading(run.seed, run.session, value) for run, value in found if value is not None]


def _mean(readings: Sequence[Reading]) -> float | None:
    return fmean(r.value for r in readings) if readings else None


def missing_text(base: Side, new: Side, *, in_base: bool, in_new: bool) -> str:
    """Why a metric that a side lacks cannot be compared."""
    if unreliable := [side.name for side in (base, new) if not side.trusted]:
        return f"no run of {' or '.join(unreliable)} can be relied on"
    lacking = [side.name for side, there in ((base, in_base), (new, in_new)) if not there]
    return f"not measured on {' and '.join(lacking)}"


def _of_requests(
    metric: Metric, scale: Scale, base: Side, new: Side, readings: Sequence[Sequence[Reading]]
) -> Estimate | None:
    """Where there is one comparison only: what single requests say of it, and the machine's noise if repeats tell."""
    seeds = [run.seed for run in base.trusted]
    paired = any(run.seed in seeds for run in new.trusted)
    ours, theirs = _pair(base, new)
    found = by_requests(metric, scale, ours, theirs, seeds[0], paired=paired)
    if found is None:
        return None
    simulated = base.simulated and new.simulated
    # Another traffic is all that can differ where no machine is involved.
    found = replace(
        found,
        base=fmean(r.value for r in readings[0]),
        new=fmean(r.value for r in readings[1]),
        has_noise=simulated,
        has_sessions=simulated or {r.session for r in base.trusted} == {r.session for r in new.trusted},
    )
    # What further sides say of the machine is of another time, and here are no pairs that could object.
    repeats = repeats_of(readings[:2])
    if paired or not repeats.freedom:
        return found
    noise = repeats.mean * (1 / len(readings[0]) + 1 / len(readings[1]))
    total = found.variance + noise
    # Satterthwaite, Biometrics Bulletin 2(6), 1946; the requests' share counts as known.
    freedom = repeats.freedom * (total / noise) ** 2 if noise > 0 else math.inf
    return replace(found, variance=total, freedom=freedom, has_noise=True)


def _pair(base: Side, new: Side) -> tuple[Recorded, Recorded]:
    """A run of each side, of the same seed where there is one."""
    for ours in base.trusted:
        for theirs in new.trusted:
            if ours.seed == theirs.seed:
                return ours.record, theirs.record
    return base.trusted[0].record, new.trusted[0].record
