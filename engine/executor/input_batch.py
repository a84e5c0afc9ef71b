"""A step plan as tensors: one flat batch of tokens, and where each request's lie in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from engine.attention.base import AttentionMetadata
from engine.request import Request
from engine.scheduler.plan import ScheduledRequest


@dataclass(frozen=True, slots=True)
class InputBatch:
    """One step's input.

    Attributes:
        token_ids, positions: int64 `[tokens]`, on the device.
        sample_rows: int64 `[samples]`, on the device: the last row of each request that yields a token.
        sampled: those requests. Both in the plan's order.
        attention: what attention needs.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    sample_rows: torch.Tensor
    sampled: list[Request]
    attention: AttentionMetadata


def build_input_batch(scheduled: Sequence[ScheduledRequest], block_size: int, device: torch.device) -> InputBatch:
    """Lay out a step in the order that `AttentionMetadata` asks for.

    Args:
        scheduled: at least one share of a step.
        block_size: tokens per KV block.
        device: where the tensors go.
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
    last_row = np.empty(len(shares), dtype=np.int64)
    last_row[order] = starts[1:] - 1
    samples = [index for index, share in enumerate(scheduled) if share.samples]
    return InputBatch(
        token_ids=_to_device(token_ids, device),
        positions=_to_device(positions, device),
        sample_rows=_to_device(last_row[samples], device),
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


def _to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)
