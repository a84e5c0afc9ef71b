"""The `triton` backend computes what the reference computes: on a card natively, elsewhere in Triton's interpreter."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.base import AttentionMetadata, GraphAttentionBackend, StepBounds
from engine.attention.kv_tensors import KVTensors
from engine.attention.registry import make_attention
from engine.attention.triton_tables import cut_step
from engine.config import CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.executor.torch_executor import TorchExecutor
from engine.model.resolve import resolve_model
from engine.request import Request, SamplingParams
from tests.engine.triton_cases import DEVICE, Case, Step, assert_equals_reference, spec

pytest.importorskip("triton")

from engine.attention.triton_attention import TritonAttention

# Decodes short and long enough to be split, a fresh prompt, a chunk with context, a chunk of two.
MIXED = [(0, 1), (15, 1), (333, 1), (0, 37), (70, 9), (5, 2)]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block_size", "dtype"),
    [
        (2, 2, 64, 8, torch.float32),
        (6, 2, 96, 16, torch.float32),
        (7, 1, 128, 32, torch.float32),
        (16, 1, 64, 256, torch.float32),
        (4, 1, 256, 24, torch.float32),
        (6, 2, 64, 16, torch.float16),
        (5, 1, 96, 64, torch.float16),
        (6, 2, 64, 16, torch.bfloat16),
        (8, 1, 128, 8, torch.bfloat16),
    ],
)
def test_a_mixed_step_equals_the_reference(
    heads: int, kv_heads: int, dim: int, block_size: int, dtype: torch.dtype
) -> None:
    assert_equals_reference(Case(spec(heads, kv_heads, dim, dtype=dtype), block_size, MIXED, seed=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kv_dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_a_cache_of_other_numbers_equals_the_reference(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    assert_equals_reference(Case(spec(6, 2, 96, None, dtype, kv_dtype), 16, MIXED, seed=6))


@pytest.mark.parametrize(("kept", "largest"), [(torch.float16, 65504.0), (torch.float8_e4m3fn, 448.0)])
def test_a_key_that_is_too_large_for_the_cache_becomes_the_largest(kept: torch.dtype, largest: float) -> None:
    step = Step(Case(spec(2, 2, 64, None, torch.float32, kept), 16, [(0, 5)], seed=8))
    step.key = step.key.clone()
    step.key[2, 0, :4] = torch.tensor([1e5, -1e5, largest, -largest])
    _, kv = step.run(make_attention("triton", step.case.spec))
    slot = int(step.metadata.slot_mapping[2])
    written = kv.keys[0, slot // 16, 0, slot % 16, :4].float().cpu()
    assert written.tolist() == [largest, -largest, largest, -largest]


@pytest.mark.parametrize("window", [1, 40, 200])
def test_a_sliding_window_equals_the_reference(window: int) -> None:
    assert_equals_reference(Case(spec(4, 2, 64, window), 16, MIXED, seed=2))


def test_a_context_in_more_parts_than_are_joined_at_a_time_equals_the_reference() -> None:
    case = Case(spec(16, 1, 16), 64, [(2300, 1)], seed=7)
    backend = make_attention("triton", case.spec)
    assert isinstance(backend, TritonAttention)
    joins = cut_step(Step(case).metadata, case.block_size, backend.work_shape).joins
    assert joins[0, 2] > 16
    assert_equals_reference(case)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    group=st.integers(1, 16),
    kv_heads=st.sampled_from([1, 2]),
    dim=st.sampled_from([16, 64, 80, 128]),
    block_size=st.sampled_from([8, 16, 20, 128]),
    window=st.sampled_from([None, None, 50]),
    shares=st.lists(st.tuples(st.integers(0, 200), st.one_of(st.just(1), st.integers(1, 60))), min_size=1, max_size=4),
    seed=st.integers(0, 2**31),
)
def test_any_step_equals_the_reference(
    group: int, kv_heads: int, dim: int, block_size: int, window: int | None, shares: list[tuple[int, int]], seed: int
) -> None:
    assert_equals_reference(Case(spec(group * kv_heads, kv_heads, dim, window), block_size, shares, seed))


def test_keys_and_values_go_to_their_slots_and_nowhere_else() -> None:
    step = Step(Case(spec(6, 3, 96), 8, MIXED, seed=3))
    _, kv = step.run(make_attention("triton", step.case.spec))
    for part, pages, rows in ((kv.keys, step.pages[0], step.key), (kv.values, step.pages[1], step.value)):
        expected = pages.clone()
        slots = torch.from_numpy(step.metadata.slot_mapping)
        expected[slots // 8, :, slots % 8] = rows.cpu()
        torch.testing.assert_close(part[0].cpu(), expected, rtol=0, atol=0, equal_nan=True)


def test_a_graph_step_is_refilled_and_its_padding_rows_give_zeros_and_write_nothing() -> None:
    shape = spec(4, 2, 64)
    steps = [Step(Case(shape, 16, shares, seed=4)) for shares in (MIXED, [(400, 1)], MIXED[3:])]
    backend = make_attention("triton", shape)
    kv = KVTensors(1, max(step.num_blocks for step in steps), 16, backend.page_shape(16), shape.dtype, DEVICE)
    assert isinstance(backend, GraphAttentionBackend)
    graph = backend.graph_step(kv, StepBounds(num_tokens=54, num_chunks=3, num_pages=80))
    padding = [torch.randn(54, heads, 64, device=DEVICE) for heads in (4, 2, 2)]
    assert torch.count_nonzero(graph.attend(0, *padding)) == 0
    assert torch.count_nonzero(kv.keys) == torch.count_nonzero(kv.values) == 0
    for step in steps:
        past = step.cache(step.pages, shape.dtype, DEVICE)
        kv.keys[:, : step.num_blocks], kv.values[:, : step.num_blocks] = past.keys, past.values
        rows = len(step.query)
        for padded, real in zip(padding, (step.query, step.key, step.value), strict=True):
            padded[:rows] = real
        assert graph.fits(step.metadata)
        graph.fill(step.metadata)
        out = graph.attend(0, *padding).cpu()
        torch.testing.assert_close(out[:rows], step.expected(), atol=1e-5, rtol=1e-5)
        assert torch.count_nonzero(out[rows:]) == 0
        _, alone = step.run(backend)
        torch.testing.assert_close(kv.keys[:, : step.num_blocks], alone.keys, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "bounds",
    [StepBounds(51, 3, 80), StepBounds(64, 2, 80), StepBounds(64, 3, 20)],
    ids=["too many tokens", "too many chunks", "too many pages"],
)
def test_a_step_beyond_the_bounds_of_a_graph_is_refused(bounds: StepBounds) -> None:
    step = Step(Case(spec(2, 1, 16), 16, [*MIXED, (60, 1)], seed=5))
    backend = make_attention("triton", step.case.spec)
    kv = step.cache(step.pages, torch.float32, DEVICE)
    assert isinstance(backend, GraphAttentionBackend)
    graph = backend.graph_step(kv, bounds)
    assert not graph.fits(step.metadata)
    with pytest.raises(ValueError, match=r"52 tokens for 7 requests, 4 of them decoding, does not fit"):
        graph.fill(step.metadata)


def test_a_decode_without_context_gives_zeros() -> None:
    shape = spec(2, 1, 16)
    backend = make_attention("triton", shape)
    kv = KVTensors(1, 2, 8, backend.page_shape(8), shape.dtype, DEVICE)
    none = np.zeros(0, dtype=np.int64)
    metadata = AttentionMetadata(1, np.array([0, 1]), np.array([0]), np.zeros((1, 1), np.int64), np.array([-1]), none)
    rows = torch.ones(1, 2, 16, device=DEVICE)
    assert torch.count_nonzero(backend.begin_step(metadata, kv).attend(0, rows, rows[:, :1], rows[:, :1])) == 0
    assert torch.count_nonzero(kv.keys) == 0


def test_a_whole_model_answers_the_same_tokens_as_with_the_reference() -> None:
    answers = []
    for attention in ("reference", "triton"):
        executor = TorchExecutor.load(
            resolve_model("random:tiny-llama"),
            dtype="float32",
            device=str(DEVICE),
            device_memory_bytes=1 << 30,
            max_model_len=128,
            attention_backend=attention,
        )
        cache = CacheConfig(block_size=8, num_gpu_blocks_override=9)
        engine = Engine(executor, SchedulerConfig(max_num_batched_tokens=24, chunk_size=9), cache)
        generator = torch.Generator().manual_seed(6)
        for index, length in enumerate((30, 5, 17)):
            prompt = torch.randint(3, executor.vocab_size, (length,), generator=generator).tolist()
            sampling = SamplingParams(max_tokens=14, temperature=0, ignore_eos=True)
            engine.add_request(Request(str(index), prompt, sampling))
        tokens: dict[str, list[int]] = {}
        preemptions = 0
        while engine.has_work:
            events, record = engine.step()
            preemptions += record.preemptions_recompute
            for event in events:
                tokens.setdefault(event.request_id, []).extend(event.token_ids)
        assert preemptions > 0
        answers.append(tokens)
    assert answers[0] == answers[1]
