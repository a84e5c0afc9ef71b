"""One model over two processes: the same tokens as from one, memory by the worse of the two, and refusals."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine.build import find_device, load_executor
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.errors import UserError
from engine.executor.base import Executor
from engine.executor.torch_executor import TorchExecutor
from engine.model.resolve import ModelSource, resolve_model
from engine.parallel.devices import several_devices
from engine.parallel.tensor_parallel import TensorParallelExecutor
from engine.request import Request, SamplingParams
from tests.engine.small_replicas import tokens_and_preemptions
from tests.engine.wide_model import wide_model

OPTIONS: dict[str, Any] = {"dtype": "float32", "device_memory_bytes": 1 << 30}
SETTINGS = {
    "whole prompts": (SchedulerConfig(), CacheConfig(num_gpu_blocks_override=60)),
    "chunks": (SchedulerConfig(max_num_batched_tokens=16, chunk_size=7), CacheConfig(num_gpu_blocks_override=60)),
    "recomputed": (SchedulerConfig(), CacheConfig(num_gpu_blocks_override=12, block_size=8)),
    "swapped": (SchedulerConfig(preemption_mode="swap"), CacheConfig(num_gpu_blocks_override=12, block_size=8)),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return wide_model(tmp_path_factory.mktemp("qwen2"))


def load(source: ModelSource) -> TensorParallelExecutor:
    return TensorParallelExecutor.load(source, size=2, device="cpu", timeout_s=60, **OPTIONS)


@pytest.fixture(scope="module")
def two_ranks(source: ModelSource) -> Iterator[TensorParallelExecutor]:
    executor = load(source)
    yield executor
    executor.shutdown()


@pytest.fixture(scope="module")
def one_rank(source: ModelSource) -> TorchExecutor:
    return TorchExecutor.load(source, **OPTIONS)


def requests() -> Iterator[Request]:
    for number, length in enumerate((5, 33, 17, 1, 23, 33)):
        # The second and the last begin alike, for the prefix cache.
        tokens = [(31 * (number % 4) + 7 * i) % 211 for i in range(length)]
        sampling = SamplingParams(max_tokens=16, temperature=number % 2, seed=number, ignore_eos=True)
        yield Request(str(number), tokens, sampling)


def tokens_of(engine: Engine) -> tuple[dict[str, list[int]], int]:
    """Tokens by request, and how many preemptions there were."""
    for request in requests():
        engine.add_request(request)
    return tokens_and_preemptions(engine)


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_those_of_one_rank(name: str, one_rank: TorchExecutor, two_ranks: TensorParallelExecutor) -> None:
    executors: list[Executor] = [one_rank, two_ranks]
    (expected, preemptions), (found, _) = (tokens_of(Engine(e, *SETTINGS[name])) for e in executors)
    assert found == expected
    assert len({tuple(tokens) for tokens in expected.values()}) > 4  # not the same loop for every request
    assert (preemptions > 0) == (name in ("recomputed", "swapped"))


def test_memory_is_sized_by_the_rank_that_has_least(one_rank: TorchExecutor, two_ranks: TensorParallelExecutor) -> None:
    whole, part = one_rank.profile_memory(64, 8), two_ranks.profile_memory(64, 8)
    assert whole.weights / 2 < part.weights < whole.weights
    assert part.total == 1 << 30
    assert two_ranks.kv_bytes_per_block(16) * 2 == one_rank.kv_bytes_per_block(16)
    # Rank 0 gathers the logits, so its step is the largest.
    assert part.peak_activation >= two_ranks._local.profile_memory(64, 8).peak_activation


def test_swap_space_is_as_fast_as_the_slowest_rank(two_ranks: TensorParallelExecutor) -> None:
    two_ranks.allocate_kv(4, 16, 3)
    link = two_ranks._local.host_link_bytes_per_s
    assert link is not None
    assert two_ranks.host_link_bytes_per_s is not None
    assert 0 < two_ranks.host_link_bytes_per_s <= link


def test_what_does_not_fit_on_a_rank_is_told_and_all_ranks_live_on(two_ranks: TensorParallelExecutor) -> None:
    with pytest.raises(Exception, match=r"ran out of memory|swap_space asks for"):
        two_ranks.allocate_kv(4, 16, 1 << 40)
    engine = Engine(two_ranks, *SETTINGS["whole prompts"])
    assert len(tokens_of(engine)[0]) == 6


def test_more_ranks_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match=r"tensor_parallel_size=2 is not possible: torch .* finds 1 CUDA device$"):
        several_devices("tensor_parallel_size", 2, "cuda")
    with pytest.raises(UserError, match=r"'cuda:1', which is one card: choose cuda, for cuda:0 to cuda:1"):
        several_devices("tensor_parallel_size", 2, "cuda:1")


def test_cuda_means_the_first_cards_where_several_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("cuda:1") == "cuda:1"
    assert several_devices("tensor_parallel_size", 2, find_device("cuda")) == ["cuda:0", "cuda:1"]


def test_a_simulated_device_is_one_card() -> None:
    model = "random:qwen2.5-7b"
    config = EngineConfig(ModelConfig(model), device="sim:h100", tensor_parallel_size=2)
    with pytest.raises(UserError, match="tensor_parallel_size=2 is not possible with device 'sim:h100'"):
        load_executor(config, resolve_model(model))


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(UserError, match="tensor_parallel_size=0 is not possible: it must be a whole number"):
        EngineConfig(tensor_parallel_size=0)
