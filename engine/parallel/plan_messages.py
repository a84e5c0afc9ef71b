"""A step's plan on its way from the rank that schedules to the others: only what they do not know yet.

A steady decode step sends some ten numbers per request: the newest token, how far the request is, and now and then a
new block. Both ends remember the requests of the last step, and nothing else: one that sat a step out is sent whole
again, which is rare, and saves telling when requests end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from engine.request import Request, SamplingParams
from engine.scheduler.plan import ScheduledRequest, StepPlan

# Only rank 0 samples, so the others need not know how.
_GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True, slots=True)
class PlanMessage:
    """A plan as arrays, int64.

    Attributes:
        shares: `[requests, 8]`: number of the request, tokens computed, tokens to compute, whether it samples, whether
            it decodes, new tokens, blocks kept of its table, new blocks.
        tokens, blocks: the new ones of all requests, one request after the other.
        swap_out, swap_in: as in the plan, `[copies, 2]`.
    """

    shares: np.ndarray
    tokens: np.ndarray
    blocks: np.ndarray
    swap_out: np.ndarray
    swap_in: np.ndarray


@dataclass(slots=True)
class _Sent:
    """What the other ranks know of a request. Its number tells it from others of the same id, before and after."""

    number: int
    num_tokens: int
    table: list[int]


class PlanSender:
    """Rank 0's end."""

    def __init__(self) -> None:
        self._sent: dict[Request, _Sent] = {}
        self._next_number = 0

    def pack(self, plan: StepPlan) -> PlanMessage:
        """What the other ranks have to be told to carry out `plan`. Every message must reach them, in order."""
        known, self._sent = self._sent, {}
        rows, tokens, blocks = [], [], []
        for share in plan.scheduled:
            request = share.request
            sent = known.get(request) or self._begin()
            table = request.block_table
            kept = len(sent.table) if table[: len(sent.table)] == sent.table else 0
            end = share.num_computed + share.num_tokens
            new_tokens, new_blocks = request.token_ids[sent.num_tokens : end], table[kept:]
            rows.append((sent.number, *share[1:], len(new_tokens), kept, len(new_blocks)))
            tokens.append(new_tokens)
            blocks.append(new_blocks)
            self._sent[request] = _Sent(sent.number, max(end, sent.num_tokens), list(table))
        return PlanMessage(
            np.array(rows, dtype=np.int64).reshape(-1, 8),
            _flat(tokens),
            _flat(blocks),
            _pairs(plan.swap_out),
            _pairs(plan.swap_in),
        )

    def _begin(self) -> _Sent:
        self._next_number += 1
        return _Sent(self._next_number, 0, [])


class PlanReceiver:
    """The end of every other rank."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}

    def unpack(self, message: PlanMessage) -> StepPlan:
        """The plan, with requests that have the same tokens and blocks as rank 0's, up to the step's end."""
        known, self._requests = self._requests, {}
        plan = StepPlan(swap_out=_tuples(message.swap_out), swap_in=_tuples(message.swap_in))
        tokens, blocks = message.tokens.tolist(), message.blocks.tolist()
        token_at = block_at = 0
        for number, computed, count, samples, is_decode, num_tokens, kept, num_blocks in message.shares.tolist():
            new_tokens = tokens[token_at : token_at + num_tokens]
            request = known.get(number)
            if request is None:
                request = Request(str(number), new_tokens, _GREEDY)
            else:
                request.token_ids += new_tokens
            request.block_table = request.block_table[:kept] + blocks[block_at : block_at + num_blocks]
            token_at += num_tokens
            block_at += num_blocks
            self._requests[number] = request
            plan.scheduled.append(ScheduledRequest(request, computed, count, bool(samples), bool(is_decode)))
        return plan


def _flat(parts: Sequence[Sequence[int]]) -> np.ndarray:
    return np.fromiter(chain.from_iterable(parts), dtype=np.int64)


def _pairs(pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _tuples(pairs: np.ndarray) -> list[tuple[int, int]]:
    return [(first, second) for first, second in pairs.tolist()]
