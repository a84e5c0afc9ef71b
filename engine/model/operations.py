"""What a decoder layer is computed with: plain torch anywhere, or kernels that do the same in fewer passes over memory.

A family has what differs between them; everything else of the computation stands once, in `engine.model.decoder`.
"""

import importlib.util
from typing import Protocol

import torch

from engine.model.layers import Linear, gated_silu, rms_norm
from engine.model.rotary import rotate

Norms = tuple[torch.Tensor, torch.Tensor]
"""Weights `[head_dim]` of the norms of query heads and of key heads."""


class LinearLayer(Protocol):
    """See `engine.model.layers.Linear`, of which the weight's layout may differ."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    packed: bool

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor: ...


class GatedLayer(Protocol):
    """`silu(x @ gate.T) * (x @ up.T)` (SwiGLU, Shazeer 2020), `[rows, hidden]` to `[rows, intermediate]`."""

    weight: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class Operations(Protocol):
    """One way to compute the pieces of a layer."""

    def linear(self, weight: torch.Tensor) -> LinearLayer:
        """A layer with the weight `[out, in]`; its bias may be set afterwards."""
        ...

    def gated(self, gate_up: torch.Tensor) -> GatedLayer:
        """The first half of an MLP, from the gate's weight above that of what it gates, `[2 * intermediate, in]`."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `engine.model.layers.rms_norm`."""
        ...

    def turn(
        self, qkv: torch.Tensor, cos_sin: torch.Tensor, heads: int, kv_heads: int, norms: Norms | None, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys turned by their positions' angles, after the norm of each head where there is one.

        Args:
            qkv: contiguous `[tokens, heads + 2 * kv_heads, head_dim]`; its queries and keys may be overwritten.
            cos_sin: of `RotaryTable.at`.

        Returns:
            `[tokens, heads, head_dim]` and `[tokens, kv_heads, head_dim]`.
        """
        ...


class TorchOperations:
    """Plain torch, on any device and in any type."""

    def linear(self, weight: torch.Tensor) -> LinearLayer:
        return Linear(weight)

    def gated(self, gate_up: torch.Tensor) -> GatedLayer:
        return _Gated(Linear(gate_up))

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rms_norm(x, weight, eps)

    def turn(
        self, qkv: torch.Tensor, cos_sin: torch.Tensor, heads: int, kv_heads: int, norms: Norms | None, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if norms is None:
            turned = rotate(qkv[:, : heads + kv_heads], cos_sin)
            return turned[:, :heads], turned[:, heads:]
        query, key = qkv[:, :heads], qkv[:, heads : heads + kv_heads]
        return rotate(rms_norm(query, norms[0], eps), cos_sin), rotate(rms_norm(key, norms[1], eps), cos_sin)


class _Gated:
    def __init__(self, gate_up: Linear) -> None:
        self.weight = gate_up.weight
        self._gate_up = gate_up

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return gated_silu(self._gate_up(x))


def operations_for(device: torch.device, dtype: torch.dtype) -> Operations:
    """The fastest family that can be had here: Triton's on a card, the compiled ones on the CPU in float32."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from engine.model.triton_operations import TritonOperations

        return TritonOperations()
    if device.type == "cpu" and dtype is torch.float32:
        from engine.model.native_operations import native_operations

        return native_operations() or TorchOperations()
    return TorchOperations()
