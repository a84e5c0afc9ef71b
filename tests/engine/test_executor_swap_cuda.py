"""Swapping on a real card: pinned memory, copies on the stream, and the way back. Skipped where there is none."""

import gc

import pytest
import torch

from engine.attention.kv_tensors import KVTensors
from engine.executor.swap_space import SwapSpace

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def random_kv(num_blocks: int, seed: int) -> KVTensors:
    device = torch.device("cuda")
    kv = KVTensors(4, num_blocks, 16, (2, 16, 64), torch.bfloat16, device)
    generator = torch.Generator(device).manual_seed(seed)
    for part in (kv.keys, kv.values):
        part.copy_(torch.randn(part.shape, generator=generator, device=device))
    return kv


def test_blocks_come_back_bit_for_bit_through_pinned_memory() -> None:
    kv = random_kv(3000, seed=0)
    swap = SwapSpace(2500, kv)
    assert swap._blocks.is_pinned()
    assert swap.bytes_per_s > 1e9
    keys, values = kv.keys.clone(), kv.values.clone()
    # More than one piece, in and out of order.
    blocks = torch.randperm(3000, generator=torch.Generator().manual_seed(1))[:2500].tolist()
    swap.copy_out(kv, list(zip(blocks, range(2500), strict=True)))
    kv.keys.zero_()
    kv.values.zero_()
    swap.copy_in(kv, list(zip(range(2500), blocks, strict=True)))
    torch.testing.assert_close(kv.keys[:, blocks], keys[:, blocks], rtol=0, atol=0)
    torch.testing.assert_close(kv.values[:, blocks], values[:, blocks], rtol=0, atol=0)


def test_pinned_memory_is_given_back_and_can_be_taken_again() -> None:
    kv = random_kv(64, seed=2)
    for _ in range(3):
        swap = SwapSpace(64, kv)
        del swap
        gc.collect()
    torch.cuda.synchronize()
