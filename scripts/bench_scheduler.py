#!/usr/bin/env python
"""Host work per step: what the scheduler costs, without a model.

Times `schedule` and `finish_step` of the real scheduler over requests that decode, the steady state of a server, with
the pool, the queue and the policy varied one at a time: the cost may grow with the requests in the step and with
nothing else. Exit code 1 when a median misses its goal.

Usage: bench_scheduler.py [--steps 300] [--json FILE]
"""

import argparse
import gc
import json
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if __package__ is None and str(Path(__file__).resolve().parent.parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from engine.clock import WallClock
from engine.config import BATCHING_MODES, POLICIES, PREEMPTION_MODES, PREEMPTION_VICTIMS, SchedulerConfig
from engine.executor.base import StepResult
from engine.host import cpu_name
from engine.kv_cache.manager import KVCacheManager
from engine.request import Request, SamplingParams
from engine.scheduler.preemption import PreemptionCost
from engine.scheduler.scheduler import Scheduler

BLOCK_SIZE = 16
PROMPT_TOKENS = 512
TOKEN_BUDGET = 16_384
GOALS_MS = {64: 0.3, 256: 1.0}
BATCHES = [mode for mode in BATCHING_MODES if mode != "continuous"]


@dataclass(frozen=True)
class Case:
    """One situation.

    Attributes:
        running: requests in a step.
        pool_blocks, queued: blocks of the KV cache, and requests that wait.
        churn: at every step a request ends and another is admitted, with its prefill.
        tight: the pool holds what the requests hold after their prompts and hardly more.
        config: settings beside the seats and the budget.
    """

    name: str
    running: int
    pool_blocks: int = 1_000_000
    queued: int = 0
    churn: bool = False
    tight: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)


LIMITS = {"max_queue_len": 200_000, "max_queue_tokens": 10**9, "queue_timeout": 3600.0, "max_predicted_wait": 1e6}


def cases() -> list[Case]:
    policies: list[dict[str, Any]] = [{"policy": policy, "aging": 30.0} for policy in POLICIES]
    listed = []
    for running in GOALS_MS:
        listed += [
            Case("a pool of 20,000 blocks", running, pool_blocks=20_000),
            Case("a pool of 1,000,000 blocks", running),
            *(Case(f"100,000 waiting, {c['policy']}", running, queued=100_000, config=c) for c in policies),
            Case("100,000 waiting, every limit", running, queued=100_000, config=LIMITS),
            *(Case(f"1,000 waiting, {mode}", running, queued=1_000, config={"batching": mode}) for mode in BATCHES),
        ]
    listed += [
        Case(f"100,000 waiting, {c['policy']}, one in and one out", 256, queued=100_000, churn=True, config=c)
        for c in policies
    ]
    for mode in PREEMPTION_MODES:
        listed.append(Case(f"no room, {mode}", 256, queued=1_000, tight=True, config={"preemption_mode": mode}))
    for victim in PREEMPTION_VICTIMS[1:]:
        config = {"preemption_victim": victim, "aging": 30.0, "policy": "tiered"}
        listed.append(Case(f"no room, recompute, {victim}", 256, queued=1_000, tight=True, config=config))
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
        enable_prefix_caching=True,
        num_swap_blocks=100_000,
    )
    config = SchedulerConfig(max_num_seqs=case.running, max_num_batched_tokens=TOKEN_BUDGET, **case.config)
    # Prefill at 10,000 tokens/s and a link of 20 GB/s, for `auto`.
    cost = PreemptionCost(bytes_per_block=1 << 20, link_bytes_per_s=20e9)
    scheduler = Scheduler(config, kv, WallClock(), max_model_len=8192, preemption_cost=cost)
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
    ended = time.perf_counter()
    scheduler.preemption_cost.observe(plan, 1_000_000 + 100_000 * plan.num_tokens)
    return ((planned - begin) + (ended - executed)) * 1e3


def main() -> int:
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
        rows.append(
            {
                **asdict(case),
                "config": dict(case.config),
                "median_ms": round(float(median), 4),
                "p95_ms": round(float(p95), 4),
            }
        )
        print(f"{case.running:>7}  {median:7.3f} {p95:7.3f} {GOALS_MS[case.running]:5.1f}  {case.name}", flush=True)
    if arguments.json:
        record = {"cpu": cpu_name(), "python": platform.python_version(), "steps": arguments.steps, "cases": rows}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(row["median_ms"] > GOALS_MS[row["running"]] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
