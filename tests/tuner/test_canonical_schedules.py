"""Settings with one canonical form do the same: whoever comes is admitted, preempted and turned away alike.

Were it not so, a study would take the measurement of one setting for that of another.
"""

from typing import Any

import pytest
from hypothesis import assume, given, strategies
from hypothesis import settings as check

from engine.clock import VirtualClock
from engine.config import BATCHING_MODES, POLICIES, PREEMPTION_MODES, PREEMPTION_VICTIMS
from engine.errors import RequestShed
from engine.executor.base import StepResult
from engine.kv_cache.manager import KVCacheManager
from engine.request import Request, SamplingParams
from engine.scheduler.preemption import PreemptionCost
from engine.scheduler.scheduler import Scheduler
from tuner.settings import Settings

MAX_MODEL_LEN = 60
STEP_NS = 10_000_000
BLOCK_SIZE = 4
BYTES_PER_BLOCK = 1 << 16
LINK_BYTES_PER_S = 1 << 23

just, one_of, whole = strategies.just, strategies.sampled_from, strategies.integers

ANY: dict[str, strategies.SearchStrategy[Any]] = {
    "max_num_seqs": whole(1, 8),
    "max_num_batched_tokens": whole(1, 40),
    "chunk_size": one_of([0, 1, 3, 8]),
    "policy": one_of(POLICIES),
    "short_first_tokens": one_of([0, 4]),
    "retried_first": strategies.booleans(),
    "aging": one_of([0.0, 0.05, 1.0]),
    "batching": one_of(BATCHING_MODES),
    "max_queue_delay": one_of([0.0, 0.005, 0.1]),
    "preferred_batch_size": one_of([0, 1, 3]),
    "max_queue_len": one_of([0, 0, 1, 2]),
    "max_queue_tokens": one_of([0, 0, 20, 40]),
    "queue_timeout": one_of([0.0, 0.0, 0.03]),
    "max_predicted_wait": one_of([0.0, 0.0, 0.02]),
    "preemption_mode": one_of(PREEMPTION_MODES),
    "swap_space": one_of([0, 8 * BYTES_PER_BLOCK]),
    "preemption_victim": one_of(PREEMPTION_VICTIMS),
}

RULES: dict[str, dict[str, strategies.SearchStrategy[Any]]] = {
    "more seats than tokens": {
        "batching": just("continuous"), "max_num_seqs": whole(5, 12), "max_num_batched_tokens": whole(1, 4),
        "chunk_size": just(0),
    },
    "chunks of the whole budget": {"chunk_size": one_of([40, 100])},
    "a batch that waits for nothing": {
        "batching": just("dynamic"), "max_queue_delay": just(0.0), "preferred_batch_size": just(0),
    },
    "a batch of one": {"batching": just("dynamic"), "max_num_seqs": just(1)},
    "a preferred size of all seats": {"batching": just("dynamic"), "preferred_batch_size": whole(8, 12)},
    "swapping without room": {"preemption_mode": one_of(["swap", "auto"]), "swap_space": just(0)},
    "swap space without swapping": {"preemption_mode": just("recompute")},
    "the automatic victim": {"preemption_victim": one_of(["last", "lowest_priority"])},
    "aging where nobody goes ahead": {
        "policy": just("fcfs"), "short_first_tokens": just(0), "retried_first": just(False), "aging": one_of([0.05, 1]),
        "preemption_victim": one_of(["auto", "last", "fewest_tokens"]),
    },
    "a delay without dynamic batching": {"batching": one_of(["continuous", "static"])},
}  # fmt: skip

# Steps until it comes, prompt tokens, output tokens, priority, how often it was turned away before.
ARRIVALS = strategies.lists(
    strategies.tuples(one_of([0, 0, 0, 1, 30]), whole(1, 30), whole(1, 20), whole(0, 2), whole(0, 1)), max_size=25
)


def play(settings: Settings, arrivals: list[tuple[int, ...]], num_blocks: int) -> list[Any]:
    """Everything that becomes of the arrivals, in order: sheds, and steps with who computes what and who gives way."""
    can_swap = settings.preemption_mode != "recompute"
    swap_blocks = settings.swap_space // BYTES_PER_BLOCK if can_swap else 0
    clock = VirtualClock()
    kv = KVCacheManager(num_blocks, BLOCK_SIZE, enable_prefix_caching=True, num_swap_blocks=swap_blocks)
    cost = PreemptionCost(BYTES_PER_BLOCK, LINK_BYTES_PER_S if swap_blocks else None)
    scheduler = Scheduler(settings.scheduler(), kv, clock, max_model_len=MAX_MODEL_LEN, preemption_cost=cost)
    due_ns, coming = 0, []
    for number, (gap, prompt, output, priority, attempt) in enumerate(arrivals):
        due_ns += gap * STEP_NS
        sampling = SamplingParams(max_tokens=output, ignore_eos=True)
        coming.append((due_ns, Request(f"r{number}", [number] * prompt, sampling, priority, attempt=attempt)))
    log: list[Any] = []
    while coming or scheduler.has_work:
        while coming and coming[0][0] <= clock.now_ns():
            request = coming.pop(0)[1]
            try:
                scheduler.add(request)
            except RequestShed as shed:
                log.append((clock.now_ns(), request.request_id, shed.limit))
        next_ns = coming[0][0] if coming else None
        if scheduler.has_work:
            idle_ns = scheduler.idle_until_ns or 0
            if next_ns is None or idle_ns < next_ns:
                clock.sleep_until(idle_ns)
                log.append(_step(scheduler, clock))
                continue
        if next_ns is not None:
            clock.sleep_until(next_ns)
    return log


def _step(scheduler: Scheduler, clock: VirtualClock) -> Any:
    plan = scheduler.schedule()
    done = (
        plan.time_ns,
        [(s.request.request_id, s.num_computed, s.num_tokens) for s in plan.scheduled],
        [(r.request_id, r.num_swaps) for r in plan.preempted],
        [r.request_id for r in plan.timed_out],
    )
    # Longer with more tokens, so that a preemption's cost can be predicted.
    clock.advance(STEP_NS + plan.num_tokens * STEP_NS // 10)
    scheduler.finish_step(plan, StepResult([7] * sum(s.samples for s in plan.scheduled)))
    return done


@pytest.mark.parametrize("rule", RULES)
@given(data=strategies.data(), arrivals=ARRIVALS, num_blocks=whole(16, 30))
@check(max_examples=40, deadline=None)
def test_what_canonical_calls_equal_schedules_and_sheds_alike(
    rule: str, data: strategies.DataObject, arrivals: list[tuple[int, ...]], num_blocks: int
) -> None:
    settings = data.draw(strategies.builds(Settings, **(ANY | RULES[rule])))
    plain = settings.canonical()
    assume(plain != settings)
    assert play(settings, arrivals, num_blocks) == play(plain, arrivals, num_blocks)
