"""When a run can end before its window does, because more of it would change nothing."""

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from workloads.bounds import Bound
from workloads.inflight import InFlight
from workloads.metrics import Window
from workloads.records import RequestRecord
from workloads.slo import Slo
from workloads.verdict import fatal_misses, holds

VERDICT_SETTLED = "verdict settled"
BACKLOG_GROWS = "backlog grows without bound"
HELD = "held beyond doubt"
BEHIND = "behind the best so far"
INTERRUPTED = "interrupted"

MAY_HAVE_HELD = (None, HELD)
"""Ends of a run (`DriveResult.stopped_early`) after which it may be said to have held its SLO: each request of its
window went to its end. With `HELD` the window is shorter than was asked for."""

# Metrics that a waiting request can be seen to miss before it ends.
OVERDUE_METRICS = ("ttft", "e2e")


@dataclass(slots=True)
class _Tally:
    """The misses known of one bound, each request once, and how many are fatal."""

    bound: Bound
    fatal: int
    missed: set[int] = field(default_factory=set)
    waiting: deque[InFlight] = field(default_factory=deque)

    def count_overdue(self, now: int) -> None:
        # Ordered by scheduled time: behind one that is not late yet, none is.
        while self.waiting:
            first = self.waiting[0]
            done = first.status is not None or (self.bound.metric == "ttft" and first.t_first is not None)
            if not done and now - first.t_sched <= self.bound.bound_ns:
                return
            if not done:
                self.missed.add(first.plan.index)
            self.waiting.popleft()


class SettledWatch:
    """Knows when the SLO is missed whatever the window's other requests do.

    It counts requests that ended in a miss, and those whose first token (or end) is overdue already. Only for open
    loops, where the number of window requests is known from the start.
    """

    def __init__(self, slo: Slo, num_window_requests: int) -> None:
        self._tallies = [
            _Tally(bound, fatal)
            for bound in slo.bounds
            if (fatal := fatal_misses(bound, num_window_requests)) is not None
        ]

    def sent(self, inflight: InFlight) -> None:
        """A request of the window was sent."""
        for tally in self._tallies:
            if tally.bound.metric in OVERDUE_METRICS:
                tally.waiting.append(inflight)

    def ended(self, record: RequestRecord) -> None:
        """A request of the window ended."""
        for tally in self._tallies:
            if not holds(tally.bound, record):
                tally.missed.add(record.index)

    def is_settled(self, now: int) -> bool:
        """Whether some bound has had its fatal number of misses."""
        for tally in self._tallies:
            tally.count_overdue(now)
        return any(len(t.missed) >= t.fatal for t in self._tallies)


class BacklogWatch:
    """Sees that requests come in far faster than they get done.

    Looked at each eighth of the window. The backlog grows without bound when over the last three eighths (four looks,
    the start of the window among them) the number in the system rose each time, in all by more than half of the
    requests that came in between, and more requests wait than run. So a queue that builds up slowly, a burst that
    drains, or seats that fill while nothing waits, stop nothing.
    """

    LOOKS = 8
    RISES = 3

    def __init__(self, window: Window) -> None:
        self._window = window
        self._looks: list[tuple[int, int]] = []

    def grows(self, now: int, in_system: int, sent: int, waiting: int, running: int) -> bool:
        """Take a look if one is due.

        Args:
            in_system: requests sent and not ended.
            sent: requests sent since the start of the run.
            waiting, running: of the last step.
        """
        span_ns = (self._window.end_ns - self._window.start_ns) / self.LOOKS
        due = self._window.start_ns + len(self._looks) * span_ns
        if now < due or len(self._looks) > self.LOOKS:
            return False
        self._looks.append((in_system, sent))
        recent = self._looks[-self.RISES - 1 :]
        if len(recent) <= self.RISES or waiting <= running:
            return False
        rises = all(later[0] > earlier[0] for earlier, later in pairwise(recent))
        return rises and recent[-1][0] - recent[0][0] > (recent[-1][1] - recent[0][1]) / 2
