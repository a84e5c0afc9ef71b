#!/usr/bin/env python
"""Replay recorded schedules through our scheduler and name the first step that differs.

Usage: check_schedules.py FILE...    (each of the form of tests/conformance/vllm_v1_schedules.json)

Exit code 0 when every step of every scenario is reproduced, 1 when one differs, 2 for a file that cannot be read.
"""

import json
import sys
from pathlib import Path
from typing import Any

if __package__ is None and str(Path(__file__).resolve().parent.parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine.clock import VirtualClock
from engine.config import SchedulerConfig
from engine.executor.base import StepResult
from engine.kv_cache.manager import KVCacheManager
from engine.request import Request, SamplingParams
from engine.scheduler.scheduler import Scheduler


def replay(scenario: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps that our scheduler makes of a scenario, as many as were recorded, in the recorded form."""
    clock = VirtualClock()
    config = SchedulerConfig(
        max_num_seqs=scenario["max_num_seqs"],
        max_num_batched_tokens=scenario["max_num_batched_tokens"],
        chunk_size=scenario["chunk_size"],
        policy=scenario["policy"],
    )
    kv = KVCacheManager(
        scenario["num_blocks"], scenario["block_size"], enable_prefix_caching=scenario["enable_prefix_caching"]
    )
    scheduler = Scheduler(config, kv, clock, max_model_len=scenario["max_model_len"])
    number_of = {request["id"]: number for number, request in enumerate(scenario["requests"])}
    steps = []
    for step_number in range(len(scenario["steps"])):
        for asked in scenario["requests"]:
            if asked["arrival_step"] == step_number:
                sampling = SamplingParams(max_tokens=asked["max_tokens"], ignore_eos=True)
                scheduler.add(Request(asked["id"], asked["prompt"], sampling, priority=asked["priority"]))
        plan = scheduler.schedule()
        free_blocks = kv.pool.num_free
        # The n-th output token of the i-th request is 1_000_000 * (i + 1) + n.
        tokens = [
            1_000_000 * (number_of[s.request.request_id] + 1) + s.request.num_output_tokens
            for s in plan.scheduled
            if s.samples
        ]
        events = scheduler.finish_step(plan, StepResult(tokens))
        scheduler.check_integrity()
        steps.append(
            {
                "scheduled": {s.request.request_id: s.num_tokens for s in plan.scheduled},
                "preempted": sorted(r.request_id for r in plan.preempted),
                "finished": sorted(e.request_id for e in events if e.finish_reason),
                "computed": {s.request.request_id: s.num_computed for s in plan.scheduled},
                "free_blocks": free_blocks,
            }
        )
        clock.advance(1)
    return steps


def first_difference(scenario: dict[str, Any]) -> str | None:
    """A sentence about the first step that differs from the recorded one, None when none does."""
    for number, (ours, recorded) in enumerate(zip(replay(scenario), scenario["steps"], strict=True)):
        for key in recorded:
            if ours[key] != recorded[key]:
                return f"{scenario['name']}, step {number}, {key}: recorded {recorded[key]}, ours {ours[key]}"
    return None


def main(paths: list[str]) -> int:
    if not paths:
        print(__doc__)
        return 2
    failed = 0
    for path in paths:
        try:
            scenarios = json.loads(Path(path).read_text())["scenarios"]
            differences = [d for d in map(first_difference, scenarios) if d is not None]
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"{path} is not a file of schedules ({error!r}); expected a JSON object with a list of 'scenarios'")
            return 2
        for difference in differences:
            print(difference)
        steps = sum(len(s["steps"]) for s in scenarios)
        failed += len(differences)
        print(
            f"{path}: {len(scenarios) - len(differences)} of {len(scenarios)} scenarios agree, {steps} steps recorded"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
