"""Whether what a run has seen so far is evidence enough for its verdict.

The evidence may be looked at as often as one likes (`workloads.betting`): that some bound is missed, or that all of
them are held. That they are held means little while a queue builds up, since a rate just above the capacity looks fine
at first; so it is asked as well that half of the window has passed and that no more requests are in the system than at
its beginning.
"""

from collections.abc import Sequence
from itertools import takewhile
from math import sqrt
from statistics import fmean

from workloads.betting import stake_on_fewer, stake_on_more
from workloads.bounds import Bound
from workloads.early_stop import OVERDUE_METRICS
from workloads.inflight import InFlight
from workloads.metrics import NS_PER_S, SAMPLES, Sample, Window
from workloads.records import RequestRecord
from workloads.slo import Slo
from workloads.verdict import ALPHA, Outcome, State, outcome, weigh
from workloads.warmup import MAX_WARMUP_LEFT, warmup_left

_MET = Outcome(met=1, total=1, typical=0.0)


class EvidenceWatch:
    """Looks at the evidence each sixteenth of the window, from the second on.

    A bound on a mean or a maximum has no share to bet on: it never speaks for a miss, and with it nothing is held
    beyond doubt.

    Args:
        may_hold: ask whether the bounds are held, too.
    """

    LOOKS = 16
    QUARTER = LOOKS // 4

    def __init__(self, slo: Slo, window: Window, warmup_s: float, *, may_hold: bool) -> None:
        self._bounds = [b for b in slo.bounds if b.required_share not in (None, 1)]
        self._may_hold = may_hold and len(self._bounds) == len(slo.bounds)
        self._window = window
        self._warmup_s = warmup_s
        self._sent: list[InFlight] = []
        # By index of the request, then by bound; None where it says nothing of it.
        self._outcomes: dict[int, list[Outcome | None]] = {}
        self._served_s: list[float] = []
        self._in_system: list[int] = []

    def sent(self, inflight: InFlight) -> None:
        """A request of the window was sent; in order of arrival."""
        self._sent.append(inflight)

    def ended(self, record: RequestRecord) -> None:
        """A request of the window ended."""
        self._outcomes[record.index] = [outcome(b, SAMPLES[b.metric](record)) for b in self._bounds]
        if record.status == "ok" and record.t_end is not None and record.t_admit is not None:
            self._served_s.append((record.t_end - record.t_admit) / NS_PER_S)

    def settled(self, now: int, in_system: int) -> State:
        """Take a look if one is due; `undecided` when there is none, or it decides nothing.

        Args:
            in_system: requests sent and not ended.
        """
        span_ns = (self._window.end_ns - self._window.start_ns) / self.LOOKS
        if now < self._window.start_ns + len(self._in_system) * span_ns or len(self._in_system) >= self.LOOKS:
            return "undecided"
        self._in_system.append(in_system)
        if len(self._in_system) <= 2 or not self._bounds:
            return "undecided"
        positions = range(len(self._bounds))
        if any(self._is_missed(position, now) for position in positions):
            return "infeasible"
        if self._may_hold and self._is_steady(now) and all(self._is_held(position, now) for position in positions):
            return "feasible"
        return "undecided"

    def _is_missed(self, position: int, now: int) -> bool:
        # Those still under way count as met: what ends soon, such as a request turned away, is known first.
        said = [self._outcome(i, position) if self._is_known(i, position, now) else _MET for i in self._sent]
        return _stakes(self._bounds[position], [o for o in said if o is not None])[1] * ALPHA >= 1

    def _is_held(self, position: int, now: int) -> bool:
        # As far as all are known: those known beyond the first that is not are the fast ones among their like.
        first = takewhile(lambda inflight: self._is_known(inflight, position, now), self._sent)
        known = [o for i in first if (o := self._outcome(i, position))]
        return _stakes(self._bounds[position], known)[0] * ALPHA >= 1

    def _is_steady(self, now: int) -> bool:
        """Half of the window has passed in which the system did not fill up, and it did not begin too empty."""
        if len(self._in_system) <= self.LOOKS // 2:
            return False
        first, last = fmean(self._in_system[: self.QUARTER]), fmean(self._in_system[-self.QUARTER :])
        if last - first > sqrt((first + last) / self.QUARTER):  # the standard error, were the numbers Poisson's
            return False
        # Those that ended are the short ones; who is found half-way is expected to take as long again.
        ages_s = [(now - i.t_sched) / NS_PER_S for i in self._sent if i.plan.index not in self._outcomes]
        served_s = [*self._served_s, *(2 * age_s for age_s in ages_s)]
        left = warmup_left(served_s, self._warmup_s, (now - self._window.start_ns) / NS_PER_S)
        return left is not None and left <= MAX_WARMUP_LEFT

    def _is_known(self, inflight: InFlight, position: int, now: int) -> bool:
        """Whether it is settled what a request says of a bound."""
        bound = self._bounds[position]
        if inflight.plan.index in self._outcomes or (bound.metric == "ttft" and inflight.t_first is not None):
            return True
        return bound.metric in OVERDUE_METRICS and now - inflight.t_sched > bound.bound_ns

    def _outcome(self, inflight: InFlight, position: int) -> Outcome | None:
        """What a request of which it is known says of a bound; None for nothing."""
        if inflight.plan.index in self._outcomes:
            return self._outcomes[inflight.plan.index][position]
        bound = self._bounds[position]
        if bound.metric == "ttft" and inflight.t_first is not None:
            return outcome(bound, Sample((inflight.t_first - inflight.t_sched,)))
        return outcome(bound, Sample((), missing=1))


def _stakes(bound: Bound, outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """What a stake of 1 on the bound being held has become, and one on its being missed."""
    if not outcomes:
        return 1.0, 1.0
    assert bound.required_share is not None
    share, size = weigh(bound.required_share, outcomes)
    misses, allowed = float(1 - share) * size, float(1 - bound.required_share)
    return float(stake_on_fewer(misses, size, allowed)), float(stake_on_more(misses, size, allowed))
