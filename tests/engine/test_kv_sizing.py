"""Memory left for the KV cache, and the sentence when it is too little."""

import pytest

from engine.errors import KVCacheTooSmall
from engine.kv_cache.sizing import GIB, KVBudget


def budget(utilization: float = 0.9) -> KVBudget:
    return KVBudget(
        total=10 * GIB,
        gpu_memory_utilization=utilization,
        weights=4 * GIB,
        other=GIB // 2,
        peak_activation=GIB // 2,
        bytes_per_block=GIB // 4,
    )


def test_blocks_are_what_weights_others_and_activations_leave() -> None:
    assert budget().num_blocks == 16
    assert budget().require(max_model_len=256, block_size=16) == 16


def test_too_little_for_one_request_names_the_smallest_setting_that_works() -> None:
    with pytest.raises(KVCacheTooSmall, match=r"gpu_memory_utilization=0\.901 is the smallest") as caught:
        budget(0.6).require(max_model_len=256, block_size=16)
    assert "lower max_model_len to 64" in str(caught.value)
    assert budget(0.901).require(max_model_len=256, block_size=16) == 16


def test_a_device_that_is_too_small_at_any_setting_is_called_so() -> None:
    with pytest.raises(KVCacheTooSmall, match="No gpu_memory_utilization is enough"):
        budget().require(max_model_len=16 * 40, block_size=16)
