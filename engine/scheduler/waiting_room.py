"""Everybody who is not running: newcomers and preempted requests in one queue, swapped ones in another before it."""

from engine.config import SchedulerConfig
from engine.request import Request, RequestStatus
from engine.scheduler.admission import Admission
from engine.scheduler.output_length import OutputLength
from engine.scheduler.waiting_queue import WaitingQueue


class WaitingRoom:
    """Who is next.

    Args:
        config: policy and limits of the queue.
        max_model_len: longest request in tokens.
        room: see `Admission`.
    """

    def __init__(self, config: SchedulerConfig, max_model_len: int, room: tuple[int, int]) -> None:
        self.waiting = WaitingQueue(config, max_model_len)
        self.swapped = WaitingQueue(config, max_model_len)
        self.admission = Admission(config, room)
        self.output_length = OutputLength()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.swapped)

    def enter(self, request: Request) -> None:
        """A newcomer, or one that was preempted; its status says which queue is its own."""
        if request.status is RequestStatus.WAITING:
            self.admission.queued(request)
        to_compute = request.num_tokens - request.num_computed_tokens
        self._queue_of(request.status).push(request, to_compute + self.output_length.expected(request))

    @property
    def head(self) -> Request | None:
        """Whose turn it is: those that wait for their cache to come back go before all others."""
        return self.swapped.peek() or self.waiting.peek()

    def seat(self, head: Request) -> None:
        """The request that `head` returned runs from now on."""
        status = head.status
        self._queue_of(status).pop()
        head.status = RequestStatus.RUNNING
        if status is RequestStatus.WAITING:
            self.admission.admitted(head)

    def leave(self, request: Request, status: RequestStatus) -> None:
        """A request has been ended that waited with this status."""
        self._queue_of(status).discard(request)
        if status is RequestStatus.WAITING:
            self.admission.left(request)

    def _queue_of(self, status: RequestStatus) -> WaitingQueue:
        return self.swapped if status is RequestStatus.SWAPPED else self.waiting
