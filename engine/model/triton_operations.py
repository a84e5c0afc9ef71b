"""The pieces of a decoder layer on a card: matrices and norms by torch, the rest by the kernels of `triton_layers`."""

import torch

from engine.model.layers import Linear
from engine.model.operations import GatedLayer, Norms, TorchOperations
from engine.model.triton_layers import gated_silu, rotate_in_place


class TritonOperations(TorchOperations):
    """See `engine.model.operations.Operations`."""

    def gated(self, gate_up: torch.Tensor) -> GatedLayer:
        return _TritonGated(Linear(gate_up))

    def turn(
        self, qkv: torch.Tensor, cos_sin: torch.Tensor, heads: int, kv_heads: int, norms: Norms | None, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rotate_in_place(qkv, cos_sin, heads, kv_heads, norms, eps)
        return qkv[:, :heads], qkv[:, heads : heads + kv_heads]


class _TritonGated:
    def __init__(self, gate_up: Linear) -> None:
        self.weight = gate_up.weight
        self._gate_up = gate_up

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return gated_silu(self._gate_up(x))
