"""Whether a bound of an SLO held in a window: feasible, infeasible or undecided, with the interval that says so.

A share is decided by its exact one-sided 95 % limits: feasible when the lower one reaches what the bound requires,
infeasible when the upper one does not. So a p95 bound needs 59 requests without a miss to be called feasible, a p99
bound 299. The reported interval is the two-sided 95 % one, a little wider than what decides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any, Literal

from workloads.bounds import Bound, format_duration
from workloads.intervals import effective_size, mean_limits, share_high, share_low
from workloads.metrics import NS_PER_MS, SAMPLES, Sample, in_window
from workloads.records import RequestRecord

State = Literal["feasible", "infeasible", "undecided"]

ALPHA = 0.05


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
      one request are no independent evidence).
    - `max`: the window itself is judged, not what lies behind it: no sample shows that the largest value ever to come
      is within a bound.
    - `mean`: Student's t over requests; a request without a value has no bound, and neither has the mean.
    """
    samples = [SAMPLES[bound.metric](r) for r in in_window(records)]
    samples = [s for s in samples if s.values or s.missing]
    return _JUDGES.get(bound.statistic, _judge_quantile)(bound, samples)


def fatal_misses(bound: Bound, total: int) -> int | None:
    """The fewest misses among `total` window requests that make the bound infeasible whatever the others do.

    A run that has this many can stop: with fewer requests behind it the same misses weigh only more. None where
    misses of requests do not decide (quantiles of ITL), or where no number of them would.
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


def _judge_quantile(bound: Bound, samples: Sequence[Sample]) -> BoundVerdict:
    required = bound.required_share
    assert required is not None
    met = [_num_met(bound, s) for s in samples]
    total = [len(s.values) + s.missing for s in samples]
    if not samples:
        return BoundVerdict(bound, "undecided", meets=False, observed_ns=None, met_share=None)
    share = Fraction(sum(met), sum(total))
    size = effective_size(met, total)
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
    if not samples:
        return BoundVerdict(bound, "undecided", meets=False, observed_ns=None, met_share=None)
    met_share = sum(_num_met(bound, s) for s in samples) / sum(len(s.values) + s.missing for s in samples)
    if any(s.missing for s in samples):
        return BoundVerdict(bound, "infeasible", meets=False, observed_ns=None, met_share=met_share)
    sums, counts = [sum(s.values) for s in samples], [len(s.values) for s in samples]
    mean = sum(sums) / sum(counts)
    low, high = mean_limits(sums, counts, ALPHA)
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
