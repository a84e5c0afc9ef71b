"""The compiled kernels as functions of torch tensors on the CPU, float32 but for pages, last dimension contiguous.

Each computes what a few plain operations compute; `engine.model.layers` and `engine.model.rotary` hold those.
"""

import ctypes

import numpy as np
import torch
from torch.nn import functional

PAGE_NUMBERS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""Types that keys and values may have in their pages, by the kernels' numbers for them."""


class NativeKernels:
    """The kernels of one compiled library.

    Attributes:
        lanes: floats that the processor computes at once.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.lanes: int = library.lanes()

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """A weight `[out, in]` in panels `[ceil(out / width), in, width]`, filled up with zeros."""
        width = 2 * self.lanes
        return _pad(weight, width).view(-1, width, weight.shape[1]).transpose(1, 2).contiguous()

    def pack_gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """A gate above what it gates, `[2 * out, in]`, in panels that hold as many columns of each."""
        inputs = gate_up.shape[1]
        halves = [_pad(half, self.lanes).view(-1, self.lanes, inputs) for half in gate_up.chunk(2)]
        return torch.stack(halves, dim=1).view(-1, 2 * self.lanes, inputs).transpose(1, 2).contiguous()

    def linear(
        self,
        x: torch.Tensor,
        panels: torch.Tensor,
        columns: int,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`x @ weight.T + bias + residual`, `[rows, columns]`, for a packed weight."""
        x = x.contiguous()
        out = x.new_empty(len(x), columns)
        residual = None if residual is None else residual.contiguous()
        self._library.linear(
            x.data_ptr(), *x.shape, panels.data_ptr(), columns, _address(bias), _address(residual), out.data_ptr(),
            torch.get_num_threads(),
        )  # fmt: skip
        return out

    def linear_gated(self, x: torch.Tensor, panels: torch.Tensor, columns: int) -> torch.Tensor:
        """`silu(x @ gate.T) * (x @ up.T)`, `[rows, columns]`, for a packed pair."""
        x = x.contiguous()
        out = x.new_empty(len(x), columns)
        self._library.linear_gated(
            x.data_ptr(), *x.shape, panels.data_ptr(), columns, out.data_ptr(), torch.get_num_threads()
        )
        return out

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """As `layers.rms_norm`, for `[rows, size]`, or `[rows, heads, size]` with the heads side by side."""
        out = torch.empty(x.shape, dtype=x.dtype)
        heads = 1 if x.dim() == 2 else x.shape[1]
        self._library.rms_norm(
            x.data_ptr(), len(x), x.stride(0), heads, x.shape[-1], weight.data_ptr(), eps, out.data_ptr(),
            torch.get_num_threads(),
        )  # fmt: skip
        return out

    def rotate(self, heads: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
        """As `rotary.rotate`, in place: returns `heads` `[tokens, heads, head_dim]`, the heads side by side."""
        tokens, num_heads, head_dim = heads.shape
        self._library.rotate(
            heads.data_ptr(), tokens, heads.stride(0), num_heads, head_dim, cos_sin.data_ptr(), torch.get_num_threads()
        )
        return heads

    def write_pages(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_pages: torch.Tensor,
        value_pages: torch.Tensor,
        slots: np.ndarray,
        block_size: int,
    ) -> None:
        """Put `[tokens, kv_heads, head_dim]` into one layer's pages, of a type in `PAGE_NUMBERS`.

        Args:
            slots: as in `AttentionMetadata`.
        """
        tokens, kv_heads, head_dim = key.shape
        self._library.write_pages(
            key.data_ptr(), key.stride(0), value.data_ptr(), value.stride(0), key_pages.data_ptr(),
            value_pages.data_ptr(), PAGE_NUMBERS[key_pages.dtype], slots.ctypes.data, tokens, kv_heads, head_dim,
            block_size, torch.get_num_threads(),
        )  # fmt: skip

    def attend(
        self,
        query: torch.Tensor,
        key_pages: torch.Tensor,
        value_pages: torch.Tensor,
        block_tables: np.ndarray,
        pieces: np.ndarray,
        *,
        kv_heads: int,
        block_size: int,
        window: int | None,
    ) -> torch.Tensor:
        """Attention of pieces of a batch over pages, `[tokens, heads * head_dim]`.

        Args:
            query: `[tokens, heads, head_dim]`.
            block_tables: int64 `[requests, blocks]`.
            pieces: int64 `[pieces, 4]`: request, first row, rows, position of the first row.
        """
        tokens, heads, head_dim = query.shape
        out = query.new_empty(tokens, heads * head_dim)
        self._library.attend(
            query.data_ptr(), query.stride(0), key_pages.data_ptr(), value_pages.data_ptr(),
            PAGE_NUMBERS[key_pages.dtype], out.data_ptr(), block_tables.ctypes.data, block_tables.shape[1],
            pieces.ctypes.data, len(pieces), heads, kv_heads, head_dim, block_size, window or 0,
            torch.get_num_threads(),
        )  # fmt: skip
        return out


def _pad(weight: torch.Tensor, width: int) -> torch.Tensor:
    return functional.pad(weight, (0, 0, 0, -len(weight) % width))


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
