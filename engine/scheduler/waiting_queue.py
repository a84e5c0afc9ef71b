"""The requests that wait for a seat, in the order of the scheduling policy."""

import heapq
from abc import ABC, abstractmethod
from collections import deque

from engine.config import SchedulingPolicy
from engine.request import Request, RequestStatus


class WaitingQueue(ABC):
    """Order of admission. Removed requests stay in the container until they come up, so removing costs nothing."""

    def __init__(self) -> None:
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, request: Request) -> None:
        """Queue a request that has arrived."""
        self._num_waiting += 1
        self._insert(request)

    def push_preempted(self, request: Request) -> None:
        """Queue a request that lost its place."""
        self._num_waiting += 1
        self._insert_preempted(request)

    def peek(self) -> Request | None:
        """Whose turn it is, or None."""
        if not self._num_waiting:
            return None
        while (head := self._head()).status is RequestStatus.FINISHED:
            self._drop_head()
        return head

    def pop(self) -> None:
        """Take out the request that `peek` returned."""
        self._num_waiting -= 1
        self._drop_head()

    def discard(self, request: Request) -> None:
        """Take out a waiting request that has been marked as finished."""
        assert request.status is RequestStatus.FINISHED
        self._num_waiting -= 1

    @abstractmethod
    def _insert(self, request: Request) -> None: ...

    @abstractmethod
    def _insert_preempted(self, request: Request) -> None: ...

    @abstractmethod
    def _head(self) -> Request: ...

    @abstractmethod
    def _drop_head(self) -> None: ...


class FCFSQueue(WaitingQueue):
    """First come, first served; the preempted go to the head."""

    def __init__(self) -> None:
        super().__init__()
        self._requests: deque[Request] = deque()

    def _insert(self, request: Request) -> None:
        self._requests.append(request)

    def _insert_preempted(self, request: Request) -> None:
        self._requests.appendleft(request)

    def _head(self) -> Request:
        return self._requests[0]

    def _drop_head(self) -> None:
        self._requests.popleft()


class PriorityQueue(WaitingQueue):
    """Lowest priority value first, then order of arrival; the preempted queue by their key like anyone."""

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[int, int, Request]] = []

    def _insert(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.priority, request.sequence_number, request))

    _insert_preempted = _insert

    def _head(self) -> Request:
        return self._heap[0][2]

    def _drop_head(self) -> None:
        heapq.heappop(self._heap)


QUEUES: dict[SchedulingPolicy, type[WaitingQueue]] = {"fcfs": FCFSQueue, "priority": PriorityQueue}
