"""A step that is padded to a graph's size, and one that is launched ahead, give the tokens of plain steps."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from engine.attention.base import AttentionMetadata, GraphAttentionBackend
from engine.attention.registry import make_attention
from engine.config import CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.executor.cuda_graphs import StepGraphs, capture_sizes
from engine.executor.torch_executor import TorchExecutor
from engine.model.resolve import resolve_model
from engine.request import Request, SamplingParams
from tests.engine.padded_reference import CountingRecorder, PaddedReference, capture_on_cpu
from tests.engine.triton_cases import needs_triton

MAX_SIZE = 24


def load() -> TorchExecutor:
    return TorchExecutor.load(resolve_model("random:tiny"), device_memory_bytes=1 << 28, max_model_len=96)


@pytest.fixture(scope="module")
def plain() -> TorchExecutor:
    return load()


@pytest.fixture
def captured() -> tuple[TorchExecutor, CountingRecorder]:
    executor = load()
    return executor, capture_on_cpu(executor, MAX_SIZE)


def make_engine(executor: TorchExecutor, blocks: int = 60, **scheduler: Any) -> Engine:
    cache = CacheConfig(num_gpu_blocks_override=blocks, block_size=4, swap_space=1 << 20)
    return Engine(executor, SchedulerConfig(**{"max_num_seqs": 10, "max_num_batched_tokens": 40} | scheduler), cache)


def serve(engine: Engine, seed: int, count: int = 12) -> tuple[dict[str, list[int]], int]:
    """Answers by request, and preemptions. Every third request draws, every fourth may be stopped by a token."""
    numbers = random.Random(seed)
    tokens: dict[str, list[int]] = {}
    preemptions = 0
    for i in range(count):
        sampling = SamplingParams(
            max_tokens=numbers.randint(1, 20),
            temperature=0.9 * (i % 3 == 0),
            top_p=0.8 if i % 2 else 1.0,
            seed=i,
            ignore_eos=True,
            stop_token_ids=tuple(range(0, 256, 9)) if i % 4 == 0 else (),
        )
        engine.add_request(Request(str(i), [numbers.randrange(200) for _ in range(numbers.randint(1, 40))], sampling))
        tokens[str(i)] = []
    while engine.has_work:
        events, record = engine.step()
        preemptions += record.preemptions_recompute + record.preemptions_swap
        for event in events:
            tokens[event.request_id] += event.token_ids
    return tokens, preemptions


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("seed", [1, 2])
def test_graphs_and_overlap_change_no_token(
    plain: TorchExecutor, captured: tuple[TorchExecutor, CountingRecorder], overlaps: bool, mode: str, seed: int
) -> None:
    expected, preemptions = serve(make_engine(plain, preemption_mode=mode, blocks=34), seed)
    assert preemptions > 0
    executor, recorder = captured
    executor.overlaps = overlaps
    assert serve(make_engine(executor, preemption_mode=mode, blocks=34), seed)[0] == expected
    assert recorder.replayed > recorder.recorded > 0


@needs_triton
def test_the_triton_backend_takes_padded_steps(plain: TorchExecutor) -> None:
    expected = serve(make_engine(plain), 5, count=3)[0]
    executor = load()
    backend = make_attention("triton", executor._attention_spec)
    assert isinstance(backend, GraphAttentionBackend)
    recorder = capture_on_cpu(executor, MAX_SIZE, backend)
    executor.overlaps = True
    assert serve(make_engine(executor), 5, count=3)[0] == expected
    assert recorder.replayed > recorder.recorded > 0


@pytest.mark.parametrize("seed", [3])
def test_overlap_alone_changes_no_token(plain: TorchExecutor, seed: int) -> None:
    expected = serve(make_engine(plain), seed)[0]
    executor = load()
    executor.overlaps = True
    assert serve(make_engine(executor), seed)[0] == expected


def test_a_graph_is_captured_once_and_kept_while_the_cache_stays(
    captured: tuple[TorchExecutor, CountingRecorder],
) -> None:
    executor, recorder = captured
    engine = make_engine(executor)
    serve(engine, 4)
    graphs = executor._graphs
    assert graphs is not None
    assert recorder.recorded == graphs.num_captured == len(graphs.all_bounds)
    engine.reconfigure(scheduler=SchedulerConfig(max_num_seqs=10, max_num_batched_tokens=40, chunk_size=16))
    serve(engine, 4)
    assert executor._graphs is graphs
    assert recorder.recorded == graphs.num_captured
    engine.reconfigure(cache=CacheConfig(num_gpu_blocks_override=61, block_size=4))
    assert executor._graphs is not graphs
    assert recorder.recorded == 2 * graphs.num_captured


def metadata(decodes: int, chunks: tuple[int, ...] = (), context: int = 8) -> AttentionMetadata:
    counts = np.array([1] * decodes + list(chunks))
    return AttentionMetadata(
        num_decodes=decodes,
        query_starts=np.concatenate([[0], counts.cumsum()]),
        context_lens=counts + context - 1,
        block_tables=np.zeros((len(counts), 20), dtype=np.int64),
        slot_mapping=np.arange(counts.sum()),
        opened_blocks=np.zeros(0, dtype=np.int64),
    )


@pytest.fixture
def graphs(captured: tuple[TorchExecutor, CountingRecorder]) -> StepGraphs:
    executor, _ = captured
    executor.allocate_kv(12, 4)
    assert executor._graphs is not None
    return executor._graphs


@pytest.mark.parametrize(
    ("step", "size"),
    [
        (metadata(1), 1),
        (metadata(3), 4),
        (metadata(9), 12),
        (metadata(24), 24),
        (metadata(25), None),
        (metadata(2, (3,)), 16),
        (metadata(2, (14,)), 16),
        # There is no larger size for steps with chunks up to this bound, and none for many chunks.
        (metadata(2, (20,)), None),
        (metadata(0, (2,) * 8), 16),
        (metadata(0, (1, 2, 1, 2, 1, 2, 1, 2, 1)), None),
        # More pages than a graph's table holds.
        (metadata(10, context=96), None),
    ],
)
def test_the_smallest_graph_that_fits_is_chosen(graphs: StepGraphs, step: AttentionMetadata, size: int | None) -> None:
    with torch.inference_mode():
        graph = graphs.find(step)
    assert (None if graph is None else graph.num_tokens) == size


def test_a_bound_below_all_sizes_still_gives_a_graph(captured: tuple[TorchExecutor, CountingRecorder]) -> None:
    executor, _ = captured
    capture_on_cpu(executor, 1)
    executor.allocate_kv(12, 4)
    assert executor._graphs is not None
    assert [bounds.num_tokens for bounds in executor._graphs.all_bounds] == [1]


def test_sizes_end_with_the_bound() -> None:
    assert capture_sizes(1) == [1]
    assert capture_sizes(20) == [1, 2, 4, 8, 12, 16, 20]
    assert capture_sizes(512)[-3:] == [384, 448, 512]


def test_the_protocol_tells_who_can_be_captured(captured: tuple[TorchExecutor, CountingRecorder]) -> None:
    executor, _ = captured
    assert isinstance(PaddedReference(executor._attention_spec), GraphAttentionBackend)
    assert not isinstance(load()._attention, GraphAttentionBackend)


def test_the_cpu_has_neither_graphs_nor_overlap(plain: TorchExecutor) -> None:
    assert not plain.overlaps
    assert plain.max_cudagraph_capture_size == 0
