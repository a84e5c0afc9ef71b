"""What the scheduler decided for one step."""

from dataclasses import dataclass, field

from engine.request import Request


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's share of a step.

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


@dataclass(slots=True)
class StepPlan:
    """One step: who computes how much, and what it cost to make room.

    Attributes:
        scheduled: in the scheduler's order: running requests, then admitted ones.
        preempted: victims of this step, in order.
        cached_tokens: prefix-cache hits of the requests admitted in this step.
        recomputed_tokens: tokens of this step that had been computed before.
        num_running, num_waiting: after scheduling.
        kv_blocks_used: after scheduling.
    """

    scheduled: list[ScheduledRequest] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    num_running: int = 0
    num_waiting: int = 0
    kv_blocks_used: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(s.num_tokens for s in self.scheduled)


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Tokens handed to a request's client.

    Attributes:
        token_ids: new tokens, in order; empty when the request ended without one (abort).
        finish_reason: `stop`, `length` or `abort` on the last event, else None.
    """

    request_id: str
    token_ids: tuple[int, ...]
    time_ns: int
    finish_reason: str | None = None
