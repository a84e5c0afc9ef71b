"""Which request is due when: the two kinds of loop behind one interface.

A feed knows nothing of the engine; the driver asks it between two steps.
"""

from bisect import insort
from typing import Protocol

from workloads.plan import RequestPlan, WorkloadPlan
from workloads.records import Phase

# A client whose request is turned away is free again at once; without a pause it would send one after the other in an
# endless burst.
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
    """A new request as a client gets free; its scheduled time is that moment.

    A client is free as its request ends, or a pause after it was turned away. The others do not wait for it.
    """

    def __init__(self, plan: WorkloadPlan, start_ns: int) -> None:
        self._plan = plan
        self._requests = iter(plan)
        self._start_ns = start_ns
        # When each client without a request is free to send the next, in order.
        self._free_at: list[int] = []

    def next_due(self, now: int, under_way: int) -> tuple[RequestPlan, Phase, int] | None:
        clients = self._plan.concurrency_at(now - self._start_ns)
        # Where their number has fallen, those leave that would be the last to send.
        del self._free_at[max(0, clients - under_way) :]
        if self._free_at and self._free_at[0] <= now:
            t_sched = self._free_at.pop(0)
        elif under_way + len(self._free_at) < clients:
            t_sched = now
        else:
            return None
        return next(self._requests), self._plan.phase_at(t_sched - self._start_ns), t_sched

    def due_at(self, now: int) -> int:
        level_ends_at = self._start_ns + self._plan.level_ends_at(now - self._start_ns)
        return min(self._free_at[0], level_ends_at) if self._free_at else level_ends_at

    def window_is_sent(self, now: int) -> bool:
        return self._plan.phase_at(now - self._start_ns) == "cooldown"

    def ended(self, t_end: int, *, turned_away: bool) -> None:
        insort(self._free_at, t_end + TURNED_AWAY_PAUSE_NS if turned_away else t_end)


def make_feed(plan: WorkloadPlan, start_ns: int) -> Feed:
    """The feed of a plan whose offset 0 is `start_ns`."""
    return OpenFeed(plan, start_ns) if plan.spec.is_open_loop else ClosedFeed(plan, start_ns)
