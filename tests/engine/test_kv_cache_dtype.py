"""A KV cache in another type than the model's: more tokens in the same memory, the same answer however it is cut."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.attention.kv_tensors import to_pages
from engine.build import load_executor
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.errors import UserError
from engine.executor.device import resolve_kv_dtype
from engine.executor.learnt_device import LearntDevice, MemoryModel
from engine.executor.roofline import Roofline, find_card
from engine.executor.step_times import TERMS, StepShape, StepTimes
from engine.executor.torch_executor import TorchExecutor
from engine.model.resolve import ModelSource, resolve_model
from engine.request import Request, SamplingParams
from engine.scheduler.plan import ScheduledRequest, StepPlan
from tests.engine.small_replicas import tokens_and_preemptions
from tests.engine.wide_model import wide_model

SOURCE = resolve_model("random:tiny-qwen2")
LARGEST = {torch.float16: 65504.0, torch.bfloat16: 3.3895e38, torch.float8_e4m3fn: 448.0}
NARROW = ["float16", "bfloat16", "fp8"]
BLOCKS = CacheConfig(num_gpu_blocks_override=60, block_size=16)
FEW_BLOCKS = CacheConfig(num_gpu_blocks_override=9, block_size=16)
SETTINGS = {
    "chunks": (SchedulerConfig(max_num_batched_tokens=16, chunk_size=7), BLOCKS),
    "recomputed": (SchedulerConfig(), FEW_BLOCKS),
    "swapped": (SchedulerConfig(preemption_mode="swap"), FEW_BLOCKS),
}


def load(kv_cache_dtype: str, backend: str = "auto", source: ModelSource = SOURCE) -> TorchExecutor:
    return TorchExecutor.load(
        source, dtype="float32", kv_cache_dtype=kv_cache_dtype, device_memory_bytes=1 << 28, attention_backend=backend
    )


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    """With heads that the native kernels take."""
    folder = tmp_path_factory.mktemp("qwen2")
    return wide_model(folder, hidden_size=64, num_attention_heads=4, initializer_range=0.25)


def answers(
    executor: TorchExecutor, scheduler: SchedulerConfig, cache: CacheConfig
) -> tuple[dict[str, list[int]], int]:
    """Tokens by request, and how many preemptions there were."""
    engine = Engine(executor, scheduler, cache)
    for number, length in enumerate((5, 33, 17, 1, 23, 40)):
        prompt = [(31 * number + 7 * i) % executor.vocab_size for i in range(length)]
        sampling = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
        engine.add_request(Request(str(number), prompt, sampling))
    return tokens_and_preemptions(engine)


def test_a_name_that_is_not_one_is_refused() -> None:
    with pytest.raises(UserError, match="kv_cache_dtype='fp4' is not possible: choose one of auto, float16"):
        ModelConfig(kv_cache_dtype="fp4")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="kv_cache_dtype='fp4' is not possible: choose one of auto, float16"):
        resolve_kv_dtype("fp4", torch.float32)


@pytest.mark.parametrize("name", NARROW)
def test_blocks_are_smaller_and_more_of_them_fit(name: str) -> None:
    usual, narrow = load("auto"), load(name)
    share = {"fp8": 4}.get(name, 2)
    assert (usual.kv_cache_dtype, narrow.kv_cache_dtype) == ("float32", name)
    assert narrow.kv_bytes_per_block(16) * share == usual.kv_bytes_per_block(16)
    engines = [Engine(executor, SchedulerConfig(), CacheConfig()) for executor in (usual, narrow)]
    assert engines[1].num_blocks / engines[0].num_blocks == pytest.approx(share, rel=0.1)


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_an_answer_does_not_depend_on_chunks_or_preemptions(name: str, backend: str, wide: ModelSource) -> None:
    executor = load(name, backend, wide)
    whole, _ = answers(executor, SchedulerConfig(), BLOCKS)
    assert all(len(set(tokens)) > 5 for tokens in whole.values())
    for how, (scheduler, cache) in SETTINGS.items():
        tokens, preemptions = answers(executor, scheduler, cache)
        assert tokens == whole, how
        assert bool(preemptions) == (how != "chunks")


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_eight_bits_change_answers_and_sixteen_hardly_do(backend: str, wide: ModelSource) -> None:
    usual, _ = answers(load("auto", backend, wide), SchedulerConfig(), BLOCKS)
    total = sum(map(len, usual.values()))
    same = {}
    for name in NARROW:
        tokens, _ = answers(load(name, backend, wide), SchedulerConfig(), BLOCKS)
        same[name] = sum(a == b for k in usual for a, b in zip(usual[k], tokens[k], strict=True)) / total
    assert same["float16"] > 0.9
    assert same["fp8"] < same["float16"]


@pytest.mark.parametrize("kept", LARGEST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_too_large_becomes_the_largest(dtype: torch.dtype, kept: torch.dtype) -> None:
    numbers = torch.tensor([1.5, 447.0, 449.0, 65504.0, 65536.0, 1e5, -1e5, 3e38]).to(dtype)
    numbers = numbers[numbers.isfinite()]
    found = to_pages(numbers, kept).float()
    bounded = numbers.double().clamp(-LARGEST[kept], LARGEST[kept]).float()
    assert found.isfinite().all()
    torch.testing.assert_close(found, bounded, rtol=0.07 if kept == torch.float8_e4m3fn else 0.01, atol=0)


def decodes(context: int, count: int) -> StepPlan:
    request = Request("a", [1], SamplingParams())
    return StepPlan(scheduled=[ScheduledRequest(request, context - 1, 1, samples=True, is_decode=True)] * count)


def test_a_simulated_card_holds_twice_as_much_in_fp8_and_reads_half_as_much() -> None:
    source = resolve_model("random:llama-3.1-8b")
    engines = {}
    for name in ("auto", "fp8"):
        config = EngineConfig(ModelConfig(source.name, kv_cache_dtype=name), device="sim:h100")
        executor = load_executor(config, source)
        engines[name] = Engine(executor, config.scheduler, config.cache)
    assert engines["fp8"].num_blocks // 2 == engines["auto"].num_blocks
    full, half = (
        Roofline(source.arch, find_card("h100"), kv_bytes_per_element=size).seconds(decodes(8000, 64))
        for size in (2, 1)
    )
    assert half < 0.7 * full


def test_a_learnt_device_says_nothing_of_another_cache(tmp_path: Path) -> None:
    memory = MemoryModel(total=1 << 30, weights=1 << 20, other=0, fixed_bytes=1e6, per_token_bytes=100.0)
    times = StepTimes((0.01,) * len(TERMS), (0.0, 0.0), 0.0, StepShape(1, 1, 1, 1, 1), 100)
    device = LearntDevice(
        name="CPU (toy)", kind="cpu", model=SOURCE.name, dtype="float32", link_bytes_per_s=None,
        memory=memory, times=times, runs=1, kv_cache_dtype="float16",
    )  # fmt: skip
    path = tmp_path / "card.json"
    path.write_text(device.to_json())
    assert LearntDevice.load(path) == device
    for asked in ("auto", "float16"):
        config = EngineConfig(ModelConfig(SOURCE.name, kv_cache_dtype=asked), device=f"sim:{path}")
        executor = load_executor(config, SOURCE)
        assert executor.kv_bytes_per_block(16) == 16 * SOURCE.arch.kv_bytes_per_token(2)
    other = replace(config, model=replace(config.model, kv_cache_dtype="fp8"))
    with pytest.raises(UserError, match="was learnt with a KV cache in float16, and says nothing of fp8"):
        load_executor(other, SOURCE)
    for types in ({"kv_cache_dtype": "fp4"}, {"dtype": "float8", "kv_cache_dtype": None}):
        path.write_text(json.dumps(json.loads(device.to_json()) | types))
        with pytest.raises(UserError, match=r"is damaged .*no such type: (fp4|float8)"):
            LearntDevice.load(path)
