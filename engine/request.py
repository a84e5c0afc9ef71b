"""One request inside the engine: what was asked, how far it is, which blocks it holds, what happened to it."""

from collections.abc import Set
from dataclasses import dataclass, field
from enum import StrEnum

from engine.errors import RequestShed, UserError

LARGEST_PRIORITY = 1_000_000_000
PENDING_TOKEN = -1
"""Stands among a request's tokens for one that a step under way will yield."""


class RequestStatus(StrEnum):
    """Where a request is: WAITING -> RUNNING -> FINISHED. After a preemption PREEMPTED takes the place of WAITING, or
    SWAPPED when its cache went to host memory."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    SWAPPED = "swapped"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a request ended. SHED is turned away at the door by an engine that tells so later, see `Request.shed`."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    QUEUE_TIMEOUT = "queue_timeout"
    SHED = "shed"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop. vLLM's names.

    Attributes:
        max_tokens: most output tokens, at least 1.
        temperature: 0 for greedy.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the smallest set of likeliest tokens whose probability reaches p, in (0, 1].
        seed: seed of this request's own random stream; None takes one from the engine's seed and the request's id.
        ignore_eos: go on until `max_tokens` whatever is sampled.
        stop_token_ids: tokens that end the request, beside the model's own end-of-sequence.

    Raises:
        UserError: a value out of range.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.max_tokens, int) or self.max_tokens < 1:
            raise UserError(f"max_tokens={self.max_tokens} is not possible: ask for at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature={self.temperature} is not possible: it is 0 (greedy) or more")
        if self.top_k < 0:
            raise UserError(f"top_k={self.top_k} is not possible: it is 0 (off) or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p={self.top_p} is not possible: it lies in (0, 1]")


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """One line of a request's history.

    Attributes:
        time_ns: when, by the engine's clock.
        kind: `queued`, `admitted`, `chunk` (a piece of prefill), `preempted`, `finished`. In a stored run also
            `turned_away`, from the driver, with the limit as its detail.
        tokens: queued: prompt tokens; admitted: tokens that were in the cache already, be it as another's prefix or
            brought back from host memory; chunk: tokens computed; preempted: tokens that had been computed;
            finished: output tokens.
        blocks: preempted: blocks given back; else the blocks held.
        detail: queued: `batch` when nothing runs, and will not until the batch has grown; preempted: `recompute` or
            `swap`, a colon, and the id of the request that got the room, nothing when it gave way because there was
            none left for itself; admitted: `swap` when it comes back from host memory; finished: the reason.
    """

    time_ns: int
    kind: str
    tokens: int
    blocks: int = 0
    detail: str = ""


@dataclass(slots=True, eq=False)
class Request:
    """A request's state. Its known tokens are the prompt's and those it has produced.

    Invariant: `0 <= num_computed_tokens <= num_tokens`, and the block table has room for the computed tokens.
    A request yields a token when its computed count reaches its known tokens. Nothing here tells a prefill
    from a decode phase: that is only a matter of how many tokens are missing.

    Attributes:
        request_id: unique among live requests.
        prompt_token_ids: at least one token.
        sampling: stop conditions and sampling.
        priority: lower is more urgent (policies `priority` and `tiered`); within `LARGEST_PRIORITY` of 0.
        arrival_ns: when it arrived, by the engine's clock; its waiting counts from here. None: when it is queued.
        attempt: how often it was turned away before, and sent again.
        sequence_number: order of arrival, set by the scheduler; breaks ties.
        token_ids: prompt and output so far, with `PENDING_TOKEN` for what is on its way.
        num_computed_tokens: tokens whose keys and values lie in the cache.
        max_computed_tokens: the most that `num_computed_tokens` ever was; computing below it again is waste.
        block_table: ids of the blocks it holds, in order of position.
        swap_table: ids of the blocks of host memory that hold its cache while it is swapped out.
        block_hashes: hash per full block of known tokens, made as they fill.
        num_cached_tokens: tokens found in the prefix cache at the first admission.
        replica: number of the engine that serves it, where there are several.
        shed: why it was turned away at the door, where `add_request` could not wait for the answer; else that raises
            it at once.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    priority: int = 0
    arrival_ns: int | None = None
    attempt: int = 0
    sequence_number: int = 0
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    max_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    swap_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_swaps: int = 0
    num_recomputed_tokens: int = 0
    history: list[RequestEvent] = field(default_factory=list)
    replica: int | None = None
    shed: RequestShed | None = None

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise UserError("a request needs at least one prompt token")
        if abs(self.priority) > LARGEST_PRIORITY:
            raise UserError(f"priority={self.priority} is not possible: it lies within {LARGEST_PRIORITY:,} of 0")
        self.token_ids = list(self.prompt_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_token_ids) :]

    @property
    def decodes_next(self) -> bool:
        """Only its newest output token is left to compute; all else is prefill."""
        known = len(self.token_ids)
        return self.num_computed_tokens == known - 1 and known > len(self.prompt_token_ids)

    def reason_to_end(self, token: int, num_output_tokens: int, eos_token_ids: Set[int]) -> FinishReason | None:
        """Whether the output ends with `token`, its `num_output_tokens`-th, and why."""
        sampling = self.sampling
        if not sampling.ignore_eos and token in eos_token_ids:
            return FinishReason.STOP
        if sampling.stop_token_ids and token in sampling.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if num_output_tokens >= sampling.max_tokens else None

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED
