"""Whether a bound of an SLO held in a window: feasible, infeasible or undecided, with the interval that says so.

A share is decided by its exact one-sided 95 % limits: feasible when the lower one reaches what the bound requires,
infeasible when the upper one does not. So a p95 bound needs 59 requests without a miss to be called feasible, a p99
bound 299. The reported interval is the two-sided 95 % one, a little wider than what decides.

Requests that queue behind each other are late together, and a hundred of them may tell no more than ten that came
alone. The limits are therefore those of an effective number of requests, which is estimated from the order in which
they came (`workloads.dependence`); for independent ones it is their number. What it does not see is dependence that
the window is too short to show: where fewer than about a hundred requests come through a queue at half its capacity,
one verdict in ten on a setting at the very edge of its bound is still too good.

Where no request missed and the bound lies far above all of them (`workloads.tolerance`), they count in full however
alike neighbours are: TPOT, which requests share with those in their batch, would else hardly ever be decided.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from statistics import fmean
from typing import Any, Literal

from workloads.bounds import Bound, format_duration
from workloads.dependence import dependence_of_mean, dependence_of_share
from workloads.intervals import effective_size, mean_limits, share_high, share_low
from workloads.metrics import NS_PER_MS, SAMPLES, Sample, in_window
from workloads.records import RequestRecord
from workloads.tolerance import lies_far_above

State = Literal["feasible", "infeasible", "undecided"]

ALPHA = 0.05

# However long requests depend on each other: that most of a window misses a bound which a twentieth of all requests
# miss is itself a rare thing (Markov's inequality), so a window of misses alone is never undecided.
FEWEST_EFFECTIVE = 2.0


@dataclass(frozen=True, slots=True)
class BoundVerdict:
    """One bound, judged.

    Attributes:
        bound: what was asked.
        state: what the interval allows to say.
        meets: the point estimate lies within the bound; says which way an undecided bound leans.
        observed_ns: the statistic itself; None without a value, or when it falls on a request that never answered.
        met_share: share of the observations within the bound; None without any.
        share_low, share_high: its two-sided 95 % interval; None for a mean.
    """

    bound: Bound
    state: State
    meets: bool
    observed_ns: float | None
    met_share: float | None
    share_low: float | None = None
    share_high: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """An entry of `verdict.bounds` in `run.json`."""
        required = self.bound.required_share
        return {
            "text": f"{self.bound.name}<={format_duration(self.bound.bound_ns)}",
            "metric": self.bound.metric,
            "statistic": self.bound.statistic,
            "bound_ms": self.bound.bound_ns / NS_PER_MS,
            "observed_ms": None if self.observed_ns is None else self.observed_ns / NS_PER_MS,
            "met_share": self.met_share,
            "share_low": self.share_low,
            "share_high": self.share_high,
            "required_share": None if required is None else float(required),
            "state": self.state,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """All bounds of an SLO, judged. Infeasible when one bound is, feasible when all are."""

    bounds: tuple[BoundVerdict, ...]

    @property
    def state(self) -> State:
        states = {b.state for b in self.bounds}
        if "infeasible" in states:
            return "infeasible"
        return "feasible" if states == {"feasible"} else "undecided"

    @property
    def meets(self) -> bool:
        """Every bound's point estimate lies within it."""
        return all(b.meets for b in self.bounds)

    def to_dict(self) -> dict[str, Any]:
        """The `verdict` of `run.json`."""
        return {"state": self.state, "bounds": [b.to_dict() for b in self.bounds]}


def holds(bound: Bound, record: RequestRecord) -> bool:
    """Whether the bound holds for this one request; never when it did not end well.

    For ITL the statistic is taken over the request's own gaps. A mean is no bound on one request: it holds for each
    that ended well.
    """
    sample = SAMPLES[bound.metric](record)
    required = bound.required_share
    if record.status != "ok" or sample.missing:
        return False
    return required is None or _num_met(bound, sample) >= required * len(sample.values)


def judge_bound(bound: Bound, records: Sequence[RequestRecord]) -> BoundVerdict:
    """Judge one bound by the requests scheduled in the window; those that did not end well are misses.

    Of those that the stop of the run cut short, what was known by then counts (see `workloads.metrics.SAMPLES`).

    - `pNN`: the share of requests within the bound; of all their gaps for ITL, which count by request (the gaps of
      one request are no independent evidence). The requests count by how far they depend on those before them.
    - `max`: the window itself is judged, not what lies behind it: no sample shows that the largest value ever to come
      is within a bound.
    - `mean`: Student's t over requests; a request without a value has no bound, and neither has the mean.

    Args:
        records: in the order in which they arrived.
    """
    samples = [SAMPLES[bound.metric](r) for r in in_window(records)]
    samples = [s for s in samples if s.values or s.missing]
    return _JUDGES.get(bound.statistic, _judge_quantile)(bound, samples)


def fatal_misses(bound: Bound, total: int) -> int | None:
    """The fewest misses among `total` window requests that miss the bound by more than chance, whatever the others do.

    By chance of independent requests; where they depend on each other the verdict may still be undecided, but the
    point estimate lies beyond the bound. A run that has this many can stop: with fewer requests behind it the same
    misses weigh only more. None where misses of requests do not decide (quantiles of ITL), or where no number of them
    would.
    """
    required = bound.required_share
    if required is None or required == 1:
        return 1 if total > 0 else None
    if bound.metric == "itl" or total == 0 or share_high(0, total, ALPHA) >= required:
        return None
    low, high = 1, total
    while low < high:
        middle = (low + high) // 2
        if share_high(total - middle, total, ALPHA) < required:
            high = middle
        else:
            low = middle + 1
    return low


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one request says of a bound.

    Attributes:
        met, total: observations within the bound, and all of them; those that never came are not within it.
        typical: their mean in nanoseconds, by which requests are compared with their neighbours; infinite where one
            never came.
    """

    met: int
    total: int
    typical: float


def outcome(bound: Bound, sample: Sample) -> Outcome | None:
    """What a request says of a bound; None when it says nothing."""
    total = len(sample.values) + sample.missing
    if not total:
        return None
    return Outcome(_num_met(bound, sample), total, float("inf") if sample.missing else fmean(sample.values))


def weigh(required: Fraction, outcomes: Sequence[Outcome]) -> tuple[Fraction, float]:
    """The share of observations within a bound, and the number of independent ones that tell as much.

    Args:
        required: share that the bound asks for.
        outcomes: of requests in the order in which they arrived, at least one.
    """
    import numpy as np

    met, total = [o.met for o in outcomes], [o.total for o in outcomes]
    dependence = float(dependence_of_share(np.array([o.typical for o in outcomes]), float(required)))
    return Fraction(sum(met), sum(total)), effective_size(met, total) / dependence


def _judge_quantile(bound: Bound, samples: Sequence[Sample]) -> BoundVerdict:
    required = bound.required_share
    assert required is not None
    outcomes = [o for s in samples if (o := outcome(bound, s)) is not None]
    if not outcomes:
        return BoundVerdict(bound, "undecided", meets=False, observed_ns=None, met_share=None)
    share, size = weigh(required, outcomes)
    size = max(size, min(FEWEST_EFFECTIVE, len(outcomes)))
    one_each = required < 1 and all(o.total == 1 for o in outcomes)
    if (
        share == 1
        and one_each
        and lies_far_above(bound.bound_ns, [o.typical for o in outcomes], float(required), ALPHA)
    ):
        size = len(outcomes)
    state: State = "undecided"
    if share_low(float(share) * size, size, ALPHA) >= required:
        state = "feasible"
    elif share_high(float(share) * size, size, ALPHA) < required:
        state = "infeasible"
    return BoundVerdict(
        bound,
        state,
        meets=share >= required,
        observed_ns=_quantile(samples, required),
        met_share=float(share),
        share_low=share_low(float(share) * size, size, ALPHA / 2),
        share_high=share_high(float(share) * size, size, ALPHA / 2),
    )


def _judge_max(bound: Bound, samples: Sequence[Sample]) -> BoundVerdict:
    verdict = _judge_quantile(bound, samples)
    if not samples:
        return verdict
    return replace(verdict, state="feasible" if verdict.meets else "infeasible")


def _judge_mean(bound: Bound, samples: Sequence[Sample]) -> BoundVerdict:
    import numpy as np

    if not samples:
        return BoundVerdict(bound, "undecided", meets=False, observed_ns=None, met_share=None)
    met_share = sum(_num_met(bound, s) for s in samples) / sum(len(s.values) + s.missing for s in samples)
    if any(s.missing for s in samples):
        return BoundVerdict(bound, "infeasible", meets=False, observed_ns=None, met_share=met_share)
    sums, counts = [sum(s.values) for s in samples], [len(s.values) for s in samples]
    mean = sum(sums) / sum(counts)
    beyond = np.array([total - mean * count for total, count in zip(sums, counts, strict=True)])
    low, high = mean_limits(sums, counts, ALPHA, float(dependence_of_mean(beyond)))
    state: State = "feasible" if high <= bound.bound_ns else "infeasible" if low > bound.bound_ns else "undecided"
    return BoundVerdict(bound, state, meets=mean <= bound.bound_ns, observed_ns=mean, met_share=met_share)


_JUDGES: dict[str, Callable[[Bound, Sequence[Sample]], BoundVerdict]] = {"max": _judge_max, "mean": _judge_mean}


def _num_met(bound: Bound, sample: Sample) -> int:
    return sum(value <= bound.bound_ns for value in sample.values)


def _quantile(samples: Sequence[Sample], share: Fraction) -> float | None:
    """The smallest value that at least this share of the observations does not exceed.

    Not interpolated, so that it lies within the bound exactly when enough observations do.
    """
    values = sorted(value for s in samples for value in s.values)
    rank = ceil(share * (len(values) + sum(s.missing for s in samples)))
    return values[rank - 1] if rank <= len(values) else None
