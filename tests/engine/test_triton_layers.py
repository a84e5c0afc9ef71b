"""The fused kernels compute what the plain layers do; on the CPU they are interpreted."""

import pytest
import torch

from engine.model.layers import gated_silu, rms_norm
from engine.model.rotary import rotate
from tests.engine.triton_cases import DEVICE, HAS_TRITON, TOLERANCE, needs_triton

if HAS_TRITON:
    from engine.model import triton_layers

TYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if DEVICE.type == "cuda" else [])


def numbers(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device=DEVICE, dtype=dtype)


@needs_triton
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("normed", [False, True], ids=["plain heads", "normed heads"])
@pytest.mark.parametrize(("tokens", "heads", "kv_heads", "dim"), [(1, 4, 4, 64), (5, 14, 2, 96), (3, 8, 1, 128)])
def test_queries_and_keys_are_turned_in_place(
    tokens: int, heads: int, kv_heads: int, dim: int, normed: bool, dtype: torch.dtype
) -> None:
    qkv = numbers(tokens, heads + 2 * kv_heads, dim, seed=1, dtype=dtype)
    angles = numbers(tokens, dim // 2, seed=2, dtype=torch.float32)
    cos_sin = torch.stack([angles.cos(), angles.sin()], dim=1).to(dtype)
    weights = numbers(2, dim, seed=3, dtype=dtype)
    query, key, value = qkv.float().split([heads, kv_heads, kv_heads], dim=1)
    if normed:
        query, key = rms_norm(query, weights[0].float(), 1e-6), rms_norm(key, weights[1].float(), 1e-6)
    expected = torch.cat([rotate(query.contiguous(), cos_sin), rotate(key.contiguous(), cos_sin), value], dim=1)
    norms = (weights[0], weights[1]) if normed else None
    triton_layers.rotate_in_place(qkv, cos_sin, heads, kv_heads, norms, 1e-6)
    torch.testing.assert_close(qkv.float(), expected, atol=4 * TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@needs_triton
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("tokens", "size"), [(1, 64), (3, 1030)])
def test_silu_and_product_are_one(tokens: int, size: int, dtype: torch.dtype) -> None:
    gate_up = 4 * numbers(tokens, 2 * size, seed=4, dtype=dtype)
    expected = gated_silu(gate_up.float())
    result = triton_layers.gated_silu(gate_up)
    assert result.shape == (tokens, size)
    torch.testing.assert_close(result.float(), expected, atol=16 * TOLERANCE[dtype], rtol=4 * TOLERANCE[dtype])
