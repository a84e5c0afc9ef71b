"""The pieces of a decoder layer by the kernels of `engine.native`: float32 on the CPU.

A product adds its bias and its residual, or applies the gate, while its sums are in registers; queries and keys are
turned where they lie. Beside fewer passes this gives every row the same numbers in whatever batch it is computed.
"""

import torch

from engine.model.operations import GatedLayer, LinearLayer, Norms
from engine.native.kernels import NativeKernels
from engine.native.library import native_library


def native_operations() -> "NativeOperations | None":
    """The compiled family; None where it cannot be compiled."""
    library = native_library()
    return None if library is None else NativeOperations(NativeKernels(library))


class NativeOperations:
    """See `engine.model.operations.Operations`."""

    def __init__(self, kernels: NativeKernels) -> None:
        self._kernels = kernels

    def linear(self, weight: torch.Tensor) -> LinearLayer:
        return _NativeLinear(weight, self._kernels)

    def gated(self, gate_up: torch.Tensor) -> GatedLayer:
        return _NativeGated(gate_up, self._kernels)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return self._kernels.rms_norm(x, weight, eps)

    def turn(
        self, qkv: torch.Tensor, cos_sin: torch.Tensor, heads: int, kv_heads: int, norms: Norms | None, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        query, key = qkv[:, :heads], qkv[:, heads : heads + kv_heads]
        if norms is None:
            self._kernels.rotate(qkv[:, : heads + kv_heads], cos_sin)
            return query, key
        query, key = self._kernels.rms_norm(query, norms[0], eps), self._kernels.rms_norm(key, norms[1], eps)
        return self._kernels.rotate(query, cos_sin), self._kernels.rotate(key, cos_sin)


class _NativeLinear:
    """`Linear` with its weight in the kernels' panels in place of the given layout."""

    packed = True

    def __init__(self, weight: torch.Tensor, kernels: NativeKernels) -> None:
        self.weight = kernels.pack(weight)
        self.bias: torch.Tensor | None = None
        self._columns = len(weight)
        self._kernels = kernels

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernels.linear(x, self.weight, self._columns, self.bias)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self._kernels.linear(x, self.weight, self._columns, self.bias, residual)


class _NativeGated:
    def __init__(self, gate_up: torch.Tensor, kernels: NativeKernels) -> None:
        self.weight = kernels.pack_gated(gate_up)
        self._columns = len(gate_up) // 2
        self._kernels = kernels

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernels.linear_gated(x, self.weight, self._columns)
