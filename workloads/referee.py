"""Follows a run and says when it may end: all that can stop one, behind one question."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.trace import IterationRecord
from workloads.arrivals import OpenLoop
from workloads.early_stop import BACKLOG_GROWS, BEHIND, HELD, VERDICT_SETTLED, BacklogWatch, SettledWatch
from workloads.evidence import EvidenceWatch
from workloads.inflight import InFlight
from workloads.metrics import NS_PER_S, Window
from workloads.plan import WorkloadPlan
from workloads.race import RaceWatch
from workloads.records import RequestRecord
from workloads.slo import Slo


@dataclass(frozen=True, slots=True)
class StopRules:
    """What may end a run before its time; see `workloads.driver.drive`.

    Attributes:
        settled: that the SLO is missed, or the backlog grows without bound.
        evidence: that by the evidence so far, too; only with `settled`.
        held: that it is held; only with `evidence`.
        race: that the run is behind one with so many good requests in each slice.
    """

    settled: bool
    evidence: bool
    held: bool
    race: Sequence[int] | None


def import_tests() -> None:
    """Import what the statistics need now, and not in the middle of a measurement."""
    import scipy.fft
    import scipy.special
    import scipy.stats  # noqa: F401


class Referee:
    """Applies the rules to a run.

    Args:
        plan: of the run. A closed loop knows neither its number of requests nor a backlog: only a race can stop it.
        slo: without one nothing is asked of a run, and it goes to its end.
    """

    def __init__(self, rules: StopRules, plan: WorkloadPlan, slo: Slo | None, window: Window) -> None:
        self._settled: SettledWatch | None = None
        self._backlog: BacklogWatch | None = None
        self._evidence: EvidenceWatch | None = None
        self._race = None if rules.race is None or slo is None else RaceWatch(rules.race, window)
        if rules.settled and slo is not None and plan.num_window_requests is not None:
            self._settled = SettledWatch(slo, plan.num_window_requests)
            self._backlog = BacklogWatch(window)
            arrival = plan.spec.arrival
            steady = isinstance(arrival, OpenLoop) and arrival.is_steady
            if rules.evidence:
                self._evidence = EvidenceWatch(slo, window, plan.warmup_ns / NS_PER_S, may_hold=rules.held and steady)
        self._watches = [w for w in (self._settled, self._evidence, self._race) if w is not None]

    def sent(self, inflight: InFlight) -> None:
        """A request of the window was sent."""
        for watch in self._watches:
            watch.sent(inflight)

    def ended(self, record: RequestRecord) -> None:
        """A request of the window ended."""
        for watch in self._watches:
            watch.ended(record)

    def reason_to_stop(self, now: int, in_system: int, sent: int, last: IterationRecord | None) -> str | None:
        """Why the run is to end; None while it is to go on.

        Args:
            in_system: requests sent and not ended.
            sent: requests sent since the start of the run.
            last: the last step; None before the first.
        """
        if self._settled is not None and self._settled.is_settled(now):
            return VERDICT_SETTLED
        if self._evidence is not None:
            state = self._evidence.settled(now, in_system)
            if state != "undecided":
                return HELD if state == "feasible" else VERDICT_SETTLED
        if self._race is not None and self._race.is_behind(now):
            return BEHIND
        if self._backlog is None or last is None:
            return None
        grows = self._backlog.grows(now, in_system, sent, waiting=last.waiting, running=last.running)
        return BACKLOG_GROWS if grows else None
