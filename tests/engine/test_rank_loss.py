"""A process that shares a model with others fails or dies: the run ends with its reason, and none is left."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from engine.config import CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.errors import RankFailed
from engine.model.arch import ModelArch
from engine.model.resolve import ModelSource
from engine.parallel.tensor_parallel import TensorParallelExecutor
from engine.request import Request, SamplingParams
from tests.engine.outlived import assert_nothing_outlives, either_end

ARCH = ModelArch("tiny", "llama", 32, 1, 2, 2, 16, 32, 64, 64)
SOURCE = ModelSource("random:tiny", ARCH, "random", None, False, None, "bfloat16")


def load() -> TensorParallelExecutor:
    return TensorParallelExecutor.load(
        SOURCE, size=2, device="cpu", timeout_s=60, dtype="float32", device_memory_bytes=1 << 30
    )


def begin(executor: TensorParallelExecutor) -> Engine:
    engine = Engine(executor, SchedulerConfig(), CacheConfig(num_gpu_blocks_override=8))
    engine.add_request(Request("a", [1, 2, 3], SamplingParams(max_tokens=20, temperature=0)))
    engine.step()
    return engine


def worker_of(executor: TensorParallelExecutor) -> Any:
    return executor._others._ranks[0].process


def test_a_killed_rank_ends_the_run_with_its_name_and_the_model_can_be_loaded_again() -> None:
    executor = load()
    engine = begin(executor)
    worker = worker_of(executor)
    os.kill(worker.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(RankFailed, match=rf"rank 1 \(process {worker.pid}\) died: killed by SIGKILL"):
            engine.step()
    executor.shutdown()
    assert not worker.is_alive()
    again = load()
    begin(again)
    again.shutdown()


def test_a_rank_that_fails_in_a_step_ends_the_run_with_its_reason() -> None:
    executor = load()
    engine = begin(executor)
    worker = worker_of(executor)
    executor._others.tell("execute", "no plan at all")
    with pytest.raises(RankFailed, match=r"rank 1 \(process \d+\) failed: AttributeError: 'str' object"):
        engine.step()
    executor.shutdown()
    assert not worker.is_alive()


PROGRAM = """
import os, signal
from engine.model.arch import ModelArch
from engine.model.resolve import ModelSource
from engine.parallel.tensor_parallel import TensorParallelExecutor

if __name__ == "__main__":
    arch = ModelArch("tiny", "llama", 32, 1, 2, 2, 16, 32, 64, 64)
    source = ModelSource("random:tiny", arch, "random", None, False, None, "bfloat16")
    executor = TensorParallelExecutor.load(source, size=2, device="cpu", timeout_s=60, device_memory_bytes=1 << 30)
    print("loaded", flush=True)
    {end}
"""


@either_end
def test_no_rank_outlives_the_program(end: str, tmp_path: Path) -> None:
    assert_nothing_outlives(PROGRAM, end, tmp_path)
