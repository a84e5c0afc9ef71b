"""What the scheduler decided for one step."""

from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from engine.request import Request, RequestEvent

_NUM_COMPUTED = attrgetter("num_computed")


class WaitCause(StrEnum):
    """Why a step admitted no more of the requests that waited.

    SEATS: all seats taken. BUDGET: the token budget is used up. BLOCKS: no room in the KV cache for the request at
    the head, or the step had to take blocks away. BATCH: the batch is closed until it has left, or still growing.
    """

    SEATS = "seats"
    BUDGET = "budget"
    BLOCKS = "blocks"
    BATCH = "batch"


class ScheduledRequest(NamedTuple):
    """One request's share of a step. A tuple, since a step makes one for each of its requests.

    Attributes:
        request: its tokens are `token_ids[num_computed : num_computed + num_tokens]`, its cache `block_table`.
        num_computed: tokens in the cache when the step begins, prefix hits included.
        num_tokens: tokens to compute in this step, at least 1.
        samples: the step brings the request to all its known tokens, so it yields a new one.
        is_decode: its one token is the output token of the step before.
    """

    request: Request
    num_computed: int
    num_tokens: int
    samples: bool
    is_decode: bool


class StepWork(NamedTuple):
    """What there is to compute in a step.

    Attributes:
        requests: in the step.
        prefill_tokens, decode_tokens: computed; a decode has one.
        attended_tokens, context_tokens: see `engine.trace.IterationRecord`.
    """

    requests: int
    prefill_tokens: int
    decode_tokens: int
    attended_tokens: int
    context_tokens: int


@dataclass(slots=True)
class StepPlan:
    """One step: who computes how much, and what it cost to make room.

    Attributes:
        scheduled: in the scheduler's order: running requests, then admitted ones.
        preempted: victims of this step, in order; `preemptions_swap` of them went to host memory.
        swap_out: (block, host block) to copy out before anything else of this step.
        swap_in: (host block, block) to copy in after that, before the step's tokens are computed.
        timed_out: requests that waited longer than `queue_timeout` and have been ended.
        cached_tokens: prefix-cache hits of the requests admitted in this step.
        recomputed_tokens: tokens of this step that had been computed before.
        num_running, num_waiting, kv_blocks_used: after scheduling.
        time_ns: when it was made.
        is_ahead: the scheduler has gone on as if it were done.
        wasted_rows: set when it is done, see `engine.trace.IterationRecord`.
        wait_cause, blocked_request: see `engine.trace.IterationRecord`.
    """

    scheduled: list[ScheduledRequest] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    preemptions_swap: int = 0
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    timed_out: list[Request] = field(default_factory=list)
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    num_running: int = 0
    num_waiting: int = 0
    kv_blocks_used: int = 0
    wait_cause: WaitCause | None = None
    blocked_request: str | None = None
    time_ns: int = 0
    is_ahead: bool = False
    wasted_rows: int = 0

    @property
    def has_work(self) -> bool:
        """Whether there is anything for an executor to do."""
        return bool(self.scheduled or self.swap_out or self.swap_in)

    @property
    def num_tokens(self) -> int:
        return sum(s.num_tokens for s in self.scheduled)

    def work(self) -> StepWork:
        """The step's work, counted."""
        chunks = [share for share in self.scheduled if not share.is_decode]
        requests = len(self.scheduled)
        decodes = requests - len(chunks)
        prefill_tokens = sum(c.num_tokens for c in chunks)
        context_tokens = sum(map(_NUM_COMPUTED, self.scheduled)) + prefill_tokens + decodes
        # The one token of a decode attends to all of its context; so does a chunk's last one, which has others before.
        attended_tokens = context_tokens
        for _, num_computed, num_tokens, _, _ in chunks:
            attended_tokens += (num_tokens - 1) * num_computed + num_tokens * (num_tokens - 1) // 2
        return StepWork(requests, prefill_tokens, decodes, attended_tokens, context_tokens)

    def add(self, request: Request, num_tokens: int) -> None:
        """Give a request, whose blocks have room for them, its next `num_tokens` in this step."""
        start = request.num_computed_tokens
        end = start + num_tokens
        is_decode = request.decodes_next
        self.scheduled.append(ScheduledRequest(request, start, num_tokens, end == request.num_tokens, is_decode))
        if start < request.max_computed_tokens:
            again = min(end, request.max_computed_tokens) - start
            request.num_recomputed_tokens += again
            self.recomputed_tokens += again
        if not is_decode:
            request.history.append(RequestEvent(self.time_ns, "chunk", num_tokens, len(request.block_table)))

    def take_out(self, victim: Request) -> int:
        """Undo `add` for a request that is to make room. Returns its tokens, 0 when it had none in this step."""
        position = next((i for i, s in enumerate(self.scheduled) if s.request is victim), None)
        if position is None:
            return 0
        share = self.scheduled.pop(position)
        again = max(0, min(share.num_computed + share.num_tokens, victim.max_computed_tokens) - share.num_computed)
        victim.num_recomputed_tokens -= again
        self.recomputed_tokens -= again
        if not share.is_decode:
            victim.history.pop()
        return share.num_tokens


class TokenEvent(NamedTuple):
    """Tokens handed to a request's client. A tuple, since a step makes one for each of its requests.

    Attributes:
        token_ids: new tokens, in order; empty when the request ended without one.
        finish_reason: `stop`, `length` or `queue_timeout` on the last event, else None.
    """

    request_id: str
    token_ids: tuple[int, ...]
    time_ns: int
    finish_reason: str | None = None
