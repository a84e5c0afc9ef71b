"""Requests that were turned away and wait to be sent again."""

from heapq import heappop, heappush

from workloads.inflight import InFlight


class Retries:
    """Hands a request back when its time has come, the one that is due first before the others."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, InFlight]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, inflight: InFlight, due_ns: int) -> None:
        """Keep a request until `due_ns` of the engine's clock."""
        heappush(self._heap, (due_ns, inflight.plan.index, inflight))

    def pop_due(self, now: int) -> InFlight | None:
        """The next request that is due at `now`."""
        return heappop(self._heap)[2] if self._heap and self._heap[0][0] <= now else None

    def due_at(self) -> int | None:
        """When the next one is due; None without any."""
        return self._heap[0][0] if self._heap else None

    def drain(self) -> list[InFlight]:
        """All of them, by the time at which they would have been due; none is kept."""
        waiting = [inflight for _, _, inflight in sorted(self._heap, key=lambda entry: entry[:2])]
        self._heap.clear()
        return waiting
