"""The pieces that every supported decoder is built from."""

import math

import torch
from torch.nn import functional

# Rows that oneDNN lays the weights out for. On two AVX2 cores this layout was as fast as any for 1 to 2048 rows,
# and 1.3 to 2.1 times as fast as an unpacked weight for the 4 to 64 rows of a decode step.
_PACK_FOR_ROWS = 64
# From so many rows on, the BLAS behind `linear` overtakes oneDNN (by a tenth at 2048 rows), even though the weight
# has to be laid out plainly for it first.
_UNPACK_FROM_ROWS = 1024


class Linear:
    """`x @ weight.T + bias`, with the weight in the layout that the device multiplies fastest.

    On the CPU in float32 the weight is kept in oneDNN's own blocked layout in place of the given one.

    Args:
        weight: `[out, in]`.
        bias: `[out]` or None.

    Attributes:
        packed: whether `weight` is in oneDNN's layout.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.packed = _can_pack(weight)
        if self.packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACK_FOR_ROWS)
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, in]` to `[rows, out]`."""
        if self._multiplies_packed(x):
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return functional.linear(x, self._plain_weight(), self.bias)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`residual + self(x)`, in one pass where the device can; `residual` may be overwritten."""
        if self._multiplies_packed(x):
            return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")
        if x.is_cuda and self.bias is None:
            return residual.addmm_(x, self.weight.t())
        return functional.linear(x, self._plain_weight(), self.bias).add_(residual)

    def _multiplies_packed(self, x: torch.Tensor) -> bool:
        return self.packed and len(x) < _UNPACK_FROM_ROWS

    def _plain_weight(self) -> torch.Tensor:
        return self.weight.to_dense() if self.packed else self.weight


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(mean(x ** 2) + eps) * weight` over the last dimension, the mean in float32 (Zhang & Sennrich 2019)."""
    if x.is_cuda:
        return functional.rms_norm(x, (x.shape[-1],), weight, eps)
    # On the CPU torch composes its rms_norm of six passes; the norm by one reduction halves its time.
    size = x.shape[-1]
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = norm.square_().add_(eps * size).rsqrt_().mul_(math.sqrt(size))
    return (x * scale).to(x.dtype).mul_(weight)


def gated_silu(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` (SwiGLU, Shazeer 2020) for `[tokens, 2 * intermediate]`, gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Memory of a tensor, packed ones included."""
    return tensor.numel() * tensor.element_size()


def _can_pack(weight: torch.Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype is torch.float32 and torch.backends.mkldnn.is_available()
