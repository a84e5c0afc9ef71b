"""Hand-made requests, and a real engine whose steps take a fixed time of a virtual clock."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.clock import Clock, VirtualClock
from engine.config import CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.executor.base import MemoryProfile, StepResult
from engine.scheduler.plan import StepPlan
from workloads.records import RequestRecord

MS = 1_000_000
S = 1_000_000_000


class FixedStepExecutor:
    """Every step takes the same time and every token is 0."""

    device_name = "none"
    simulated = True
    eos_token_ids: tuple[int, ...] = (0,)

    def __init__(self, step_ns: int, max_model_len: int) -> None:
        self._time = VirtualClock(start_ns=5 * S)
        self.clock: Clock = self._time
        self.max_model_len = max_model_len
        self.vocab_size = 10**9
        self.host_link_bytes_per_s: float | None = None
        self.fail_after_steps: int | None = None
        self._step_ns = step_ns
        self._steps = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self._steps += 1
        if self.fail_after_steps is not None and self._steps > self.fail_after_steps:
            raise MemoryError("no room left")
        self._time.advance(self._step_ns)
        return StepResult([0 for s in plan.scheduled if s.samples])

    def kv_bytes_per_block(self, block_size: int) -> int:
        return 1

    def profile_memory(self, max_num_batched_tokens: int, max_num_seqs: int) -> MemoryProfile:
        raise AssertionError("the number of blocks is given")

    def allocate_kv(self, num_blocks: int, block_size: int, num_swap_blocks: int = 0) -> None:
        self.host_link_bytes_per_s = 1e9 if num_swap_blocks else None

    def shutdown(self) -> None:
        pass


@pytest.fixture(scope="session")
def make_engine() -> Callable[..., Engine]:
    def make(
        step_ms: int = 10, seats: int = 8, max_model_len: int = 4096, blocks: int = 4096, **scheduling: Any
    ) -> Engine:
        executor = FixedStepExecutor(step_ms * MS, max_model_len)
        scheduler = SchedulerConfig(max_num_seqs=seats, max_num_batched_tokens=8192, **scheduling)
        return Engine(executor, scheduler, CacheConfig(num_gpu_blocks_override=blocks, swap_space=blocks))

    return make


@pytest.fixture(scope="session")
def make_record() -> Callable[..., RequestRecord]:
    """A request scheduled at 0 that went well; `chunks` are (time_ns, tokens), `changes` any other field."""

    def make(chunks: list[tuple[int, int]] | None = None, **changes: Any) -> RequestRecord:
        chunks = [(100 * MS, 1), (200 * MS, 1)] if chunks is None else chunks
        fields: dict[str, Any] = {
            "index": 0,
            "phase": "window",
            "status": "ok",
            "finish_reason": "length",
            "error": None,
            "t_sched": 0,
            "t_send": 0,
            "t_admit": 0,
            "t_first": chunks[0][0] if chunks else None,
            "t_last": chunks[-1][0] if chunks else None,
            "t_end": chunks[-1][0] if chunks else 0,
            "prompt_tokens": 10,
            "max_tokens": sum(n for _, n in chunks),
            "output_tokens": sum(n for _, n in chunks),
            "first_chunk_tokens": chunks[0][1] if chunks else 0,
            "cached_tokens": 0,
            "preemptions": 0,
            "recomputed_tokens": 0,
            "chunk_times": tuple(t for t, _ in chunks),
            "chunk_tokens": tuple(n for _, n in chunks),
        }
        fields |= changes
        return RequestRecord(request_id=f"req-{fields['index']}", **fields)

    return make
