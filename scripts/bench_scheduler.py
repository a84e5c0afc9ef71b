#!/usr/bin/env python
"""Host work per step: what the scheduler costs, without a model.

Times `schedule` and `finish_step` of the real scheduler over requests that decode, the steady state of a server, with
the pool, the queue and the policy varied one at a time: the cost may grow with the requests in the step and with
nothing else.

    scripts/bench_scheduler.py [--steps 300] [--json FILE]
"""

import argparse
import gc
import json
import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from engine.clock import WallClock
from engine.config import POLICIES, PREEMPTION_MODES, SchedulerConfig
from engine.executor.base import StepResult
from engine.host import cpu_name
from engine.kv_cache.manager import KVCacheManager
from engine.request import Request, SamplingParams
from engine.scheduler.scheduler import Scheduler

BLOCK_SIZE = 16
PROMPT_TOKENS = 512
TOKEN_BUDGET = 16_384
GOALS_MS = {64: 0.3, 256: 1.0}


@dataclass(frozen=True)
class Case:
    """One situation. `churn`: a request ends and another is admitted at every step, with its prefill."""

    name: str
    running: int
    pool_blocks: int
    queued: int
    policy: str = "fcfs"
    prefix_caching: bool = True
    churn: bool = False
    tight: bool = False
    preemption_mode: str = "recompute"


def cases() -> list[Case]:
    small, large = 20_000, 1_000_000
    listed = [
        Case("plain", 64, small, 0),
        Case("plain", 256, small, 0),
        Case("pool of 1,000,000 blocks", 64, large, 0),
        Case("pool of 1,000,000 blocks", 256, large, 0),
    ]
    listed += [Case(f"queue of 100,000, {policy}", 64, large, 100_000, policy) for policy in POLICIES]
    listed += [Case(f"queue of 100,000, {policy}", 256, large, 100_000, policy) for policy in POLICIES]
    listed += [
        Case(f"queue of 100,000, {policy}, one in and one out per step", 256, large, 100_000, policy, churn=True)
        for policy in POLICIES
    ]
    listed += [
        Case(f"no room, preemption by {mode}", 256, 0, 1_000, tight=True, preemption_mode=mode)
        for mode in PREEMPTION_MODES[:2]
    ]
    return listed


def make_request(index: int, output_tokens: int, rng: np.random.RandomState) -> Request:
    # Size and priority differ, so that keyed queues have something to order.
    prompt = rng.randint(0, 32_000, PROMPT_TOKENS).tolist()
    sampling = SamplingParams(max_tokens=output_tokens, ignore_eos=True)
    return Request(f"r{index}", prompt, sampling, priority=index % 5)


def measure(case: Case, num_steps: int) -> np.ndarray:
    """Milliseconds of each step, `[num_steps]`."""
    rng = np.random.RandomState(0)
    blocks_each = -(-(PROMPT_TOKENS + 2 * num_steps) // BLOCK_SIZE)
    # Tight: what the requests hold after their prompts, and a little more, so that they soon need what others have.
    tight_blocks = case.running * (PROMPT_TOKENS // BLOCK_SIZE + 1)
    kv = KVCacheManager(
        tight_blocks if case.tight else max(case.pool_blocks, case.running * blocks_each),
        BLOCK_SIZE,
        enable_prefix_caching=case.prefix_caching,
        num_swap_blocks=100_000 if case.preemption_mode == "swap" else 0,
    )
    config = SchedulerConfig(
        max_num_seqs=case.running,
        max_num_batched_tokens=TOKEN_BUDGET,
        policy=case.policy,  # type: ignore[arg-type]
        aging=30.0 if case.policy != "fcfs" else 0.0,
        preemption_mode=case.preemption_mode,  # type: ignore[arg-type]
    )
    scheduler = Scheduler(config, kv, WallClock(), max_model_len=8192)
    for index in range(case.running):
        # With churn the k-th step ends the k-th request.
        output_tokens = 2 * num_steps if not case.churn else 20 + index % case.running
        scheduler.add(make_request(index, output_tokens, rng))
    for _ in range(case.running * PROMPT_TOKENS // TOKEN_BUDGET + 1):
        step(scheduler)
    shared = make_request(0, case.running, rng).prompt_token_ids
    for index in range(case.queued):
        sampling = SamplingParams(max_tokens=case.running, ignore_eos=True)
        # One prompt for all, changed at its first token: 100,000 lists of their own would only measure the memory.
        prompt = [index % 32_000, *shared[1 : 1 + (index * 7) % (PROMPT_TOKENS - 1)]]
        scheduler.add(Request(f"q{index}", prompt, sampling, priority=index % 5))
    for _ in range(10):
        step(scheduler)
    gc.collect()
    gc.disable()
    times = np.array([step(scheduler) for _ in range(num_steps)])
    gc.enable()
    return times


def step(scheduler: Scheduler) -> float:
    """One step without a model. Returns its milliseconds."""
    begin = time.perf_counter()
    plan = scheduler.schedule()
    planned = time.perf_counter()
    result = StepResult([1] * sum(s.samples for s in plan.scheduled))
    executed = time.perf_counter()
    scheduler.finish_step(plan, result)
    return ((planned - begin) + (time.perf_counter() - executed)) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="measured steps per case")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    arguments = parser.parse_args()
    print(f"{cpu_name()}, Python {platform.python_version()}; milliseconds per step")
    print(f"{'running':>7}  {'median':>7} {'p95':>7} {'goal':>5}  case")
    rows = []
    for case in cases():
        times = measure(case, arguments.steps)
        median, p95 = np.percentile(times, [50, 95])
        rows.append(asdict(case) | {"median_ms": round(float(median), 4), "p95_ms": round(float(p95), 4)})
        print(f"{case.running:>7}  {median:7.3f} {p95:7.3f} {GOALS_MS[case.running]:5.1f}  {case.name}", flush=True)
    if arguments.json:
        record = {"cpu": cpu_name(), "python": platform.python_version(), "steps": arguments.steps, "cases": rows}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
