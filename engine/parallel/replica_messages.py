"""What a replica in a process of its own and whoever routes to it say to one another.

Requests go by tickets, numbers that are never used again: an id may be, before all has been heard of its first bearer.
Times are nanoseconds of the machine's monotonic clock, which all processes share.
"""

import pickle
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from engine.errors import RequestShed
from engine.executor.base import Executor
from engine.kv_cache.sizing import KVBudget
from engine.parallel.children import Failure
from engine.request import FinishReason, Request, RequestEvent, RequestStatus, SamplingParams
from engine.trace import IterationRecord


class NewRequest(NamedTuple):
    """A request on its way to a replica: what `Request` is made of."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    priority: int
    arrival_ns: int | None
    attempt: int

    @classmethod
    def of(cls, request: Request) -> "NewRequest":
        return cls(
            request.request_id,
            request.prompt_token_ids,
            request.sampling,
            request.priority,
            request.arrival_ns,
            request.attempt,
        )


class Command(NamedTuple):
    """What a replica is told to do.

    Attributes:
        name: of a method of `engine.parallel.replica_process.Replica`.
        number: of the command, which its answer has too; 0 where none is expected.
    """

    name: str
    arguments: tuple[Any, ...]
    number: int = 0


class Answer(NamedTuple):
    """What came of a command: a value, or an error that leaves the replica as it was."""

    number: int
    value: Any | Failure


class Change(NamedTuple):
    """What is new about a request.

    Attributes:
        events: that came to its history.
    """

    ticket: int
    events: list[RequestEvent]
    status: RequestStatus
    finish_reason: FinishReason | None
    num_computed_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    num_swaps: int
    num_recomputed_tokens: int

    @classmethod
    def of(cls, ticket: int, request: Request, events_told: int) -> "Change":
        """What is new since so many events of its history were told."""
        return cls(
            ticket,
            request.history[events_told:],
            request.status,
            request.finish_reason,
            request.num_computed_tokens,
            request.num_cached_tokens,
            request.num_preemptions,
            request.num_swaps,
            request.num_recomputed_tokens,
        )

    def apply(self, request: Request) -> None:
        """Bring the request that the other side has up to date."""
        request.history += self.events
        request.status, request.finish_reason = self.status, self.finish_reason
        request.num_computed_tokens, request.num_cached_tokens = self.num_computed_tokens, self.num_cached_tokens
        request.num_preemptions, request.num_swaps = self.num_preemptions, self.num_swaps
        request.num_recomputed_tokens = self.num_recomputed_tokens


class StepNews(NamedTuple):
    """What a step has brought.

    Attributes:
        events: ticket, new tokens, time and finish reason, as in `TokenEvent`.
        changes: of the requests with news beyond a token.
        record: of the step.
    """

    events: list[tuple[int, tuple[int, ...], int, str | None]]
    changes: list[Change]
    record: IterationRecord


class ShedNews(NamedTuple):
    """A request that was turned away at the door."""

    ticket: int
    time_ns: int
    text: str
    limit: str
    retry_after_s: float

    def error(self) -> RequestShed:
        return RequestShed(self.text, self.limit, self.retry_after_s)


class Device(NamedTuple):
    """A replica's device and model, as its executor has them; see `engine.executor.torch_executor.TorchExecutor`.

    Attributes:
        threads: for arithmetic on the CPU.
    """

    device_name: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    kv_cache_dtype: str
    attention_backend: str
    overlaps: bool
    threads: int


class Sizes(NamedTuple):
    """What the memory settings have come to; see `engine.engine.Engine` and `Executor.host_link_bytes_per_s`."""

    num_blocks: int
    num_swap_blocks: int
    kv_budget: KVBudget | None
    host_link_bytes_per_s: float | None


News = Answer | StepNews | ShedNews | Failure
"""What a replica says. A failure outside of an answer is that of a step, or its last word."""


def send(connection: Connection, message: Command | News | None) -> None:
    """Say something; the other side gets it by `Connection.recv`. A replica that is sent None ends.

    Raises:
        OSError: nobody is there.
    """
    connection.send_bytes(pack(message))


def pack(message: Command | News | None) -> bytes:
    """What `send` says, for whoever sends it later."""
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def device_of(executor: Executor, threads: int) -> Device:
    """What there is to know of an executor of a real device."""
    known = {name: getattr(executor, name) for name in Device._fields if name != "threads"}
    return Device(**known, threads=threads)
