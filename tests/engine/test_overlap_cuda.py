"""Graphs and overlap on a card: the tokens of eager steps, and a host that waits for nothing but tokens."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from engine.config import CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.executor.cuda_graphs import graph_bytes
from engine.executor.torch_executor import TorchExecutor
from engine.model.resolve import resolve_model
from engine.request import Request, SamplingParams
from engine.trace import IterationRecord

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def load(**options: Any) -> TorchExecutor:
    # In float32 a rounding that differs by the size of a batch does not change which token is the likeliest.
    return TorchExecutor.load(
        resolve_model("random:tiny"), device="cuda", dtype="float32", max_model_len=128, **options
    )


def serve(executor: TorchExecutor, **sampling: Any) -> tuple[dict[str, list[int]], list[IterationRecord]]:
    engine = Engine(
        executor,
        SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=256),
        CacheConfig(num_gpu_blocks_override=100, block_size=16),
    )
    numbers = random.Random(3)
    tokens: dict[str, list[int]] = {}
    for i in range(24):
        prompt = [numbers.randrange(200) for _ in range(numbers.randint(1, 60))]
        asked = SamplingParams(max_tokens=numbers.randint(1, 40), ignore_eos=True, seed=i, **sampling)
        engine.add_request(Request(str(i), prompt, asked))
    records = []
    while engine.has_work:
        events, record = engine.step()
        records.append(record)
        for event in events:
            tokens.setdefault(event.request_id, []).extend(event.token_ids)
    return tokens, records


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.9}, {"top_k": 20}], ids=str)
def test_graphs_and_overlap_give_the_tokens_of_eager_steps(sampling: dict[str, Any]) -> None:
    eager = load(enforce_eager=True)
    assert (eager.overlaps, eager.max_cudagraph_capture_size) == (False, 0)
    expected = serve(eager, **sampling)[0]
    executor = load()
    assert executor.overlaps
    assert executor.max_cudagraph_capture_size > 0
    assert serve(executor, **sampling)[0] == expected
    assert executor._graphs is not None
    captured = executor._graphs.num_captured
    assert captured > 0
    # They are kept from run to run.
    tokens, records = serve(executor, **sampling)
    assert tokens == expected
    assert executor._graphs.num_captured == captured
    assert all(record.device_time_ns is not None and record.device_time_ns > 0 for record in records)
    assert all(record.gap_ns >= 0 for record in records)


@contextmanager
def no_waiting() -> Iterator[None]:
    """A call that makes the host wait for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("options", [{}, {"max_cudagraph_capture_size": 0}], ids=["graphs", "eager kernels"])
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.9}], ids=str)
def test_to_launch_a_step_the_host_waits_for_nothing(
    options: dict[str, Any], sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = load(**options)
    serve(executor, **sampling)
    launch = executor.launch

    def checked(plan: Any) -> Any:
        with no_waiting():
            return launch(plan)

    monkeypatch.setattr(executor, "launch", checked)
    serve(executor, **sampling)


def test_the_memory_of_graphs_is_counted() -> None:
    executor = load()
    executor.allocate_kv(10, 16)
    assert executor._kv is not None
    with torch.inference_mode():
        kv = executor._kv
        assert graph_bytes(lambda: executor._make_graphs(executor._attention, kv), torch.device("cuda")) > 0
    assert executor.profile_memory(256, 16).other > 0
