"""Which request is due when: the two kinds of loop behind one interface.

A feed knows nothing of the engine; the driver asks it between two steps.
"""

from collections import deque
from typing import Protocol

from workloads.plan import RequestPlan, WorkloadPlan
from workloads.records import Phase

# A request of a closed loop that is turned away ends at once; without a pause its successors would come in an endless
# burst.
TURNED_AWAY_PAUSE_NS = 100_000_000


class Feed(Protocol):
    """Hands out the requests of a plan."""

    def next_due(self, now: int, under_way: int) -> tuple[RequestPlan, Phase, int] | None:
        """The next request that is due, its phase and scheduled time; None when none is due at `now`.

        Args:
            now: the engine's clock, in nanoseconds.
            under_way: requests sent and not ended.
        """
        ...

    def due_at(self, now: int) -> int:
        """The earliest time after `now` at which a request may be due though none has ended until then.

        To be asked when `next_due` has nothing more for `now`.
        """
        ...

    def window_is_sent(self, now: int) -> bool:
        """No request of the window, nor of the warm-up, is still to come."""
        ...

    def ended(self, t_end: int, *, turned_away: bool) -> None:
        """A request left the engine, or was turned away for good."""
        ...


class OpenFeed:
    """Requests by their schedule, whatever became of the earlier ones."""

    def __init__(self, plan: WorkloadPlan, start_ns: int) -> None:
        self._requests = iter(plan)
        self._start_ns = start_ns
        self._next = next(self._requests)

    def next_due(self, now: int, under_way: int) -> tuple[RequestPlan, Phase, int] | None:
        request, t_sched = self._next, self.due_at(now)
        if t_sched > now:
            return None
        assert request.phase is not None
        self._next = next(self._requests)
        return request, request.phase, t_sched

    def due_at(self, now: int) -> int:
        assert self._next.t_offset_ns is not None
        return self._start_ns + self._next.t_offset_ns

    def window_is_sent(self, now: int) -> bool:
        return self._next.phase == "cooldown"

    def ended(self, t_end: int, *, turned_away: bool) -> None:
        pass


class ClosedFeed:
    """A new request as one ends; its scheduled time is that moment."""

    def __init__(self, plan: WorkloadPlan, start_ns: int) -> None:
        self._plan = plan
        self._requests = iter(plan)
        self._start_ns = start_ns
        self._ends: deque[int] = deque()
        self._paused_until = start_ns

    def next_due(self, now: int, under_way: int) -> tuple[RequestPlan, Phase, int] | None:
        if now < self._paused_until:
            return None
        if under_way >= self._plan.concurrency_at(now - self._start_ns):
            # The number under way has fallen: those that ended are not replaced.
            self._ends.clear()
            return None
        t_sched = self._ends.popleft() if self._ends else now
        return next(self._requests), self._plan.phase_at(t_sched - self._start_ns), t_sched

    def due_at(self, now: int) -> int:
        if now < self._paused_until:
            return self._paused_until
        return self._start_ns + self._plan.level_ends_at(now - self._start_ns)

    def window_is_sent(self, now: int) -> bool:
        return self._plan.phase_at(now - self._start_ns) == "cooldown"

    def ended(self, t_end: int, *, turned_away: bool) -> None:
        if turned_away:
            self._paused_until = t_end + TURNED_AWAY_PAUSE_NS
        else:
            self._ends.append(t_end)


def make_feed(plan: WorkloadPlan, start_ns: int) -> Feed:
    """The feed of a plan whose offset 0 is `start_ns`."""
    return OpenFeed(plan, start_ns) if plan.spec.is_open_loop else ClosedFeed(plan, start_ns)
