"""When requests may join those that run: at every step, or in batches that leave together."""

from abc import ABC, abstractmethod
from enum import StrEnum

from engine.config import BatchingMode, SchedulerConfig
from engine.request import Request


class Phase(StrEnum):
    """What a step may hold where prefill and decode do not mix."""

    PREFILL = "prefill"
    DECODE = "decode"


def phase_of(request: Request) -> Phase:
    """What a request has to do next: only an output token left to compute is a decode."""
    return Phase.DECODE if request.decodes_next else Phase.PREFILL


class Batching(ABC):
    """One batching mode."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config

    @abstractmethod
    def begin_step(
        self, running: list[Request], swapped_head: Request | None, num_waiting: int, is_ready: bool
    ) -> Phase | None:
        """The only kind of work of the step to come; None for both.

        Args:
            swapped_head: the next to come back from host memory.
            num_waiting: requests that wait to be admitted.
            is_ready: `ready_at_ns` has come.
        """

    @abstractmethod
    def room(self, running: list[Request]) -> tuple[int, int]:
        """Requests and prompt tokens that the next step can take from an empty queue, blocks left aside."""

    @property
    def may_admit(self) -> bool:
        """Whether this step may admit another waiting request."""
        return True

    def admitted(self) -> None:  # noqa: B027  (a mode that counts nothing need not care)
        """A waiting request was admitted."""

    def close(self) -> None:  # noqa: B027
        """There was no room for the next one."""

    def ready_at_ns(self, num_waiting: int, oldest_ns: int | None) -> int | None:
        """Until when a batch may still grow, with nothing running; None when it need not.

        Args:
            oldest_ns: when the request that has waited longest was queued; None when one waits that has run before.
        """
        return None


class Continuous(Batching):
    """Requests come and go at every step, prefill beside decode."""

    def begin_step(
        self, running: list[Request], swapped_head: Request | None, num_waiting: int, is_ready: bool
    ) -> Phase | None:
        return None

    def room(self, running: list[Request]) -> tuple[int, int]:
        return self.config.max_num_seqs - len(running), self.config.max_num_batched_tokens - len(running)


class Static(Batching):
    """A batch has as many members as wait when the last one has left, and no more than seats. Their prompts come first,
    in as many steps as the budget makes of them and in the policy's order; then they decode, and a request that ends
    leaves its seat empty. A preempted member comes back into the batch when it was swapped out, and into the next one
    when not.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._still_to_admit = 0

    def begin_step(
        self, running: list[Request], swapped_head: Request | None, num_waiting: int, is_ready: bool
    ) -> Phase | None:
        if not running:
            if swapped_head is not None:
                self._still_to_admit = 0
                return phase_of(swapped_head)
            self._still_to_admit = self._batch_size(num_waiting) if is_ready else 0
            return Phase.PREFILL
        if self._still_to_admit or any(phase_of(r) is Phase.PREFILL for r in running):
            return Phase.PREFILL
        return Phase.DECODE

    def _batch_size(self, num_waiting: int) -> int:
        return min(num_waiting, self.config.max_num_seqs)

    def room(self, running: list[Request]) -> tuple[int, int]:
        # All of a batch is let in when it is formed, however many steps its prompts take.
        seats = 0 if running else self._batch_size(self.config.max_num_seqs)
        return seats, seats * self.config.max_num_batched_tokens

    @property
    def may_admit(self) -> bool:
        return self._still_to_admit > 0

    def admitted(self) -> None:
        self._still_to_admit -= 1

    def close(self) -> None:
        self._still_to_admit = 0


class Dynamic(Static):
    """A static batch that may wait to grow, as in Triton's dynamic batcher: it leaves when it has the preferred size,
    or when its first request has waited for `max_queue_delay`.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._preferred = min(config.preferred_batch_size or config.max_num_seqs, config.max_num_seqs)
        self._delay_ns = round(config.max_queue_delay * 1e9)

    def _batch_size(self, num_waiting: int) -> int:
        # With more than the preferred size waiting, the batch has just that: the rest forms the next one.
        return min(num_waiting, self._preferred)

    def ready_at_ns(self, num_waiting: int, oldest_ns: int | None) -> int | None:
        if num_waiting >= self._preferred or oldest_ns is None:
            return None
        return oldest_ns + self._delay_ns


BATCHING: dict[BatchingMode, type[Batching]] = {"continuous": Continuous, "static": Static, "dynamic": Dynamic}
"""Mode to class; a new one is one class and one name here."""
