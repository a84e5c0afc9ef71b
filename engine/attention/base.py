"""What attention is told about a step, and what every backend does with it."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from engine.attention.kv_tensors import KVTensors


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What stays the same for all steps.

    Attributes:
        num_heads, num_kv_heads, head_dim: `num_heads` query heads share `num_kv_heads` KV heads evenly.
        sliding_window: a token attends to itself and the `sliding_window - 1` before it; None for all.
        dtype, device: of the tensors.
        kv_dtype: of the numbers in the KV cache; None for `dtype`.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None
    dtype: torch.dtype
    device: torch.device
    kv_dtype: torch.dtype | None = None

    @property
    def page_dtype(self) -> torch.dtype:
        """What keys and values are kept in."""
        return self.dtype if self.kv_dtype is None else self.kv_dtype


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """One step, as attention sees it. Host arrays; requests and their rows are in the batch's order.

    The batch begins with the requests that compute one token (decodes, and chunks of one), the longest context
    first, so that backends can take neighbours together. Those that compute more follow.

    Attributes:
        num_decodes: requests of one token; they own the rows `0 .. num_decodes - 1`.
        query_starts: int64 `[requests + 1]`, first row of each request, then the number of rows.
        context_lens: int64 `[requests]`, tokens the request's last row attends to, itself included.
        block_tables: int64 `[requests, max_blocks]`, padded with 0.
        slot_mapping: int64 `[tokens]`, `block * block_size + offset` where each token's keys and values go.
        opened_blocks: int64, blocks whose first position is written in this step.
    """

    num_decodes: int
    query_starts: np.ndarray
    context_lens: np.ndarray
    block_tables: np.ndarray
    slot_mapping: np.ndarray
    opened_blocks: np.ndarray


class AttentionStep(Protocol):
    """A step that has been prepared: everything that its layers share is worked out."""

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Write this step's keys and values of one layer, then attend.

        Args:
            layer: index of the layer.
            query: `[tokens, heads, head_dim]`.
            key, value: `[tokens, kv_heads, head_dim]`.

        Returns:
            `[tokens, heads * head_dim]`.
        """
        ...


class AttentionBackend(Protocol):
    """A way to compute attention over pages. It chooses how a page is laid out."""

    def page_shape(self, block_size: int) -> tuple[int, ...]:
        """Shape of one layer's keys (and of its values) in one block."""
        ...

    def begin_step(self, metadata: AttentionMetadata, kv: KVTensors) -> AttentionStep:
        """Prepare a step. The step is used up before the next one begins."""
        ...


@dataclass(frozen=True, slots=True)
class StepBounds:
    """The largest step that a captured graph is replayed for.

    Attributes:
        num_tokens: rows of the batch, padding included. Every replay has exactly so many.
        num_chunks: requests that compute more than one token; 0 for a graph of decodes alone.
        num_pages: blocks of all requests' contexts, a block counted once for each request that reads it.
    """

    num_tokens: int
    num_chunks: int
    num_pages: int


class GraphStep(AttentionStep, Protocol):
    """A step whose `attend` launches the same work on the same memory each time, so that a CUDA graph can hold it.

    `fill` says what the next replay computes. It goes between replays, on the stream that they run on.
    """

    def fits(self, metadata: AttentionMetadata) -> bool:
        """Whether a step is within the bounds. Its rows may be fewer than the graph's."""
        ...

    def fill(self, metadata: AttentionMetadata) -> None:
        """Set the step that `attend` computes from here on; the host does not wait for the device.

        Rows behind those of `metadata` are padding: they write no keys and values, and their result is zeros.
        Before the first `fill` all rows are padding.

        Raises:
            ValueError: the step does not fit.
        """
        ...


@runtime_checkable
class GraphAttentionBackend(AttentionBackend, Protocol):
    """A backend whose steps can be part of a CUDA graph."""

    def graph_step(self, kv: KVTensors, bounds: StepBounds) -> GraphStep:
        """A step to capture once and to refill before every replay, valid as long as `kv` is in use.

        Many graph steps may be in use beside each other, and beside steps of `begin_step`, on one stream. Made with
        the largest `num_pages` first, they share what memory they need.
        """
        ...
