"""Rotary position embedding (Su et al. 2021, "RoFormer"), with the stretchings that the supported models use.

Pairs are the two halves of a head (element i with element i + head_dim / 2), as in Hugging Face checkpoints.
"""

import math
from collections.abc import Callable

import torch

from engine.model.arch import ModelArch, RopeScaling


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> torch.Tensor:
    """Radians per position of each pair, float32 `[head_dim / 2]`: `theta ** (-2 i / head_dim)`, stretched."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / theta**exponent
    return plain if scaling is None else _STRETCH[scaling.kind](plain, theta, scaling)


class RotaryTable:
    """Cosines and sines of every position, made once.

    Args:
        arch: heads, base and stretching.
        num_positions: positions `0 .. num_positions - 1`.
        dtype: of the model; angles are always worked out in float32.
        device: where the table lies.
    """

    def __init__(self, arch: ModelArch, num_positions: int, dtype: torch.dtype, device: torch.device) -> None:
        frequencies = inverse_frequencies(arch.head_dim, arch.rope_theta, arch.rope_scaling)
        factor = 1.0 if arch.rope_scaling is None else arch.rope_scaling.attention_factor
        angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
        self._table = torch.stack([angles.cos() * factor, angles.sin() * factor], dim=1).to(device=device, dtype=dtype)

    @property
    def num_bytes(self) -> int:
        """Memory of the table."""
        return self._table.numel() * self._table.element_size()

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        """Cosine and sine, `[tokens, 2, head_dim / 2]`, for `positions` `[tokens]`."""
        return self._table.index_select(0, positions)


def rotate(heads: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """Turn each pair of `heads` `[tokens, heads, head_dim]` by its position's angle; a new tensor of that shape."""
    tokens, num_heads, head_dim = heads.shape
    cos, sin = cos_sin[:, None, :1], cos_sin[:, None, 1]  # [tokens, 1, 1, half], [tokens, 1, half]
    halves = heads.view(tokens, num_heads, 2, head_dim // 2)
    turned = halves * cos
    turned[:, :, 0].addcmul_(halves[:, :, 1], sin, value=-1)
    turned[:, :, 1].addcmul_(halves[:, :, 0], sin)
    return turned.view(tokens, num_heads, head_dim)


def _linear(plain: torch.Tensor, theta: float, scaling: RopeScaling) -> torch.Tensor:
    return plain / scaling.factor


def _llama3(plain: torch.Tensor, theta: float, scaling: RopeScaling) -> torch.Tensor:
    """Llama 3.1: long waves are divided, short ones kept, those between blended by turns per original length."""
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return torch.lerp(plain / scaling.factor, plain, kept.clamp(0, 1))


def _yarn(plain: torch.Tensor, theta: float, scaling: RopeScaling) -> torch.Tensor:
    """YaRN (Peng et al. 2023), "NTK-by-parts": a linear ramp over the pairs, between two numbers of turns."""
    head_dim = 2 * len(plain)

    def pair_with(turns: float) -> float:
        """Index of the pair that makes `turns` rotations over the original length."""
        wave = scaling.original_max_position_embeddings / (2 * math.pi * turns)
        return head_dim * math.log(wave) / (2 * math.log(theta))

    low, high = pair_with(scaling.beta_fast), pair_with(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    # An empty ramp is a step, here between `low` and the pair after it.
    width = high - low or 0.001
    stretched = ((torch.arange(len(plain), dtype=torch.float32) - low) / width).clamp(0, 1)
    return torch.lerp(plain, plain / scaling.factor, stretched)


_STRETCH: dict[str, Callable[[torch.Tensor, float, RopeScaling], torch.Tensor]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
