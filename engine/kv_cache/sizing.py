"""How many KV blocks fit, and the sentence for when too few do. Plain arithmetic over bytes."""

import math
from dataclasses import dataclass

from engine.errors import KVCacheTooSmall

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class KVBudget:
    """The device's memory and who takes what, in bytes.

    `gpu_memory_utilization` is vLLM's: `total * utilization` is what the engine may use in all; what weights,
    other holders and the transient peak of a step leave of it becomes KV blocks.
    """

    total: int
    gpu_memory_utilization: float
    weights: int
    other: int
    peak_activation: int
    bytes_per_block: int

    @property
    def kv_bytes(self) -> int:
        """What is left for the KV cache; negative when the rest alone is too much."""
        return int(self.total * self.gpu_memory_utilization) - self.weights - self.other - self.peak_activation

    @property
    def num_blocks(self) -> int:
        return max(0, self.kv_bytes // self.bytes_per_block)

    def require(self, max_model_len: int, block_size: int) -> int:
        """The number of blocks, if one request of `max_model_len` tokens fits.

        Raises:
            KVCacheTooSmall: with the numbers and the smallest setting that works.
        """
        needed = -(-max_model_len // block_size)
        if self.num_blocks >= needed:
            return self.num_blocks
        taken = self.weights + self.other + self.peak_activation
        # Rounded up to a setting a person would type; the millionth keeps the product from rounding below it.
        smallest = math.ceil((taken + needed * self.bytes_per_block) / self.total * 1000 + 1e-6) / 1000
        fits = self.num_blocks * block_size
        remedy = (
            f"gpu_memory_utilization={smallest:.3f} is the smallest that works"
            if smallest <= 1
            else "No gpu_memory_utilization is enough on this device; give it more memory (--device-memory on the CPU)"
        )
        shorter = f", or lower max_model_len to {fits}" if fits >= 2 else ""
        raise KVCacheTooSmall(
            f"gpu_memory_utilization={self.gpu_memory_utilization:g} leaves {_gib(max(0, self.kv_bytes))} for the KV "
            f"cache, room for {fits} tokens, but one request may have max_model_len={max_model_len} "
            f"({_gib(needed * self.bytes_per_block)}). Of {_gib(self.total)} in all, weights take "
            f"{_gib(self.weights)}, a step's activations {_gib(self.peak_activation)}, others {_gib(self.other)}. "
            f"{remedy}{shorter}."
        )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"
