"""What attention is told about a step, and what every backend does with it."""

from dataclasses import dataclass
from typing import Protocol

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
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None
    dtype: torch.dtype
    device: torch.device


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
