"""A step plan as tensors: one flat batch of tokens, and where each request's lie in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from engine.attention.base import AttentionMetadata
from engine.executor.device import send
from engine.request import PENDING_TOKEN, Request
from engine.scheduler.plan import ScheduledRequest


@dataclass(frozen=True, slots=True)
class InputBatch:
    """One step's input, on the host.

    Attributes:
        token_ids, positions: int64 `[tokens]`.
        sample_rows: int64 `[samples]`, the last row of each request that yields a token.
        pending_rows: int64 `[pending]`, rows whose token the step before samples; their `token_ids` are 0.
        pending_sources: int64 `[pending]`, where among that step's samples.
        sampled: the requests of `sample_rows`. Both in the plan's order.
        attention: what attention needs.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    sample_rows: np.ndarray
    pending_rows: np.ndarray
    pending_sources: np.ndarray
    sampled: list[Request]
    attention: AttentionMetadata

    def to(self, device: torch.device, last_tokens: torch.Tensor | None) -> "DeviceBatch":
        """The tensors, in one copy that the host does not wait for.

        Args:
            last_tokens: int64, what the step before sampled; needed where tokens are pending.
        """
        token_ids, positions, sample_rows, pending_rows, pending_sources = send(self.arrays, device)
        if len(self.pending_rows):
            assert last_tokens is not None
            token_ids.index_copy_(0, pending_rows, last_tokens.index_select(0, pending_sources))
        return DeviceBatch(token_ids, positions, sample_rows)

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """Token ids, positions, sample rows, pending rows and pending sources."""
        return (self.token_ids, self.positions, self.sample_rows, self.pending_rows, self.pending_sources)


class DeviceBatch(NamedTuple):
    """What the decoder takes of an `InputBatch`, all int64 on the device."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    sample_rows: torch.Tensor


def build_input_batch(
    scheduled: Sequence[ScheduledRequest], block_size: int, last_sampled: Sequence[Request] = ()
) -> InputBatch:
    """Lay out a step in the order that `AttentionMetadata` asks for.

    Args:
        scheduled: at least one share of a step.
        block_size: tokens per KV block.
        last_sampled: `sampled` of the step before; every request with a `PENDING_TOKEN` is among them.
    """
    order = sorted(range(len(scheduled)), key=lambda index: _batch_order(scheduled[index]))
    shares = [scheduled[index] for index in order]
    computed = np.array([share.num_computed for share in shares], dtype=np.int64)
    counts = np.array([share.num_tokens for share in shares], dtype=np.int64)
    starts = np.concatenate([[0], counts.cumsum()])
    request_of_row = np.repeat(np.arange(len(shares)), counts)
    positions = np.arange(starts[-1]) + np.repeat(computed - starts[:-1], counts)

    tables = _block_tables(shares)
    offsets = positions % block_size
    blocks = tables[request_of_row, positions // block_size]
    attention = AttentionMetadata(
        num_decodes=int(np.count_nonzero(counts == 1)),
        query_starts=starts,
        context_lens=computed + counts,
        block_tables=tables,
        slot_mapping=blocks * block_size + offsets,
        opened_blocks=blocks[offsets == 0],
    )
    token_ids = np.fromiter(chain.from_iterable(map(_tokens, shares)), dtype=np.int64, count=len(positions))
    pending_rows = np.flatnonzero(token_ids == PENDING_TOKEN)
    pending_sources = _sources([shares[row].request for row in request_of_row[pending_rows]], last_sampled)
    token_ids[pending_rows] = 0
    last_row = np.empty(len(shares), dtype=np.int64)
    last_row[order] = starts[1:] - 1
    samples = [index for index, share in enumerate(scheduled) if share.samples]
    return InputBatch(
        token_ids=token_ids,
        positions=positions,
        sample_rows=last_row[samples],
        pending_rows=pending_rows,
        pending_sources=pending_sources,
        sampled=[scheduled[index].request for index in samples],
        attention=attention,
    )


def _batch_order(share: ScheduledRequest) -> tuple[bool, int]:
    """One-token requests first, the longest context leading; the sort keeps the plan's order among the rest."""
    is_chunk = share.num_tokens > 1
    return is_chunk, 0 if is_chunk else -share.num_computed


def _tokens(share: ScheduledRequest) -> list[int]:
    return share.request.token_ids[share.num_computed : share.num_computed + share.num_tokens]


def _block_tables(shares: Sequence[ScheduledRequest]) -> np.ndarray:
    """Block tables as one array, int64 `[requests, max_blocks]`, padded with 0."""
    lengths = np.array([len(share.request.block_table) for share in shares])
    tables = np.zeros((len(shares), lengths.max()), dtype=np.int64)
    flat = chain.from_iterable(share.request.block_table for share in shares)
    tables[np.arange(lengths.max()) < lengths[:, None]] = np.fromiter(flat, dtype=np.int64, count=lengths.sum())
    return tables


def _sources(requests: Sequence[Request], last_sampled: Sequence[Request]) -> np.ndarray:
    """Where in `last_sampled` each request stands, int64."""
    place = {id(request): index for index, request in enumerate(last_sampled)} if requests else {}
    return np.array([place[id(request)] for request in requests], dtype=np.int64)
