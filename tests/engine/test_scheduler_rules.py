"""Single rules of the scheduler that the recorded schedules do not show."""

from typing import Any

import pytest

from engine.clock import VirtualClock
from engine.config import SchedulerConfig
from engine.errors import RequestRefused, UserError
from engine.executor.base import StepResult
from engine.kv_cache.manager import KVCacheManager
from engine.request import FinishReason, Request, SamplingParams
from engine.scheduler.scheduler import Scheduler


def make(num_blocks: int = 8, max_model_len: int = 64, eos: tuple[int, ...] = (), **config: Any) -> Scheduler:
    kv = KVCacheManager(num_blocks, 4, enable_prefix_caching=True)
    return Scheduler(SchedulerConfig(**config), kv, VirtualClock(), max_model_len=max_model_len, eos_token_ids=eos)


def ask(name: str = "a", prompt: int = 5, **sampling: Any) -> Request:
    return Request(name, list(range(prompt)), SamplingParams(**sampling))


def run_step(scheduler: Scheduler, token: int = 1) -> None:
    plan = scheduler.schedule()
    scheduler.finish_step(plan, StepResult([token] * sum(s.samples for s in plan.scheduled)))


def test_a_request_longer_than_the_model_is_refused_on_arrival() -> None:
    with pytest.raises(RequestRefused, match="max_model_len=64"):
        make().add(ask(prompt=60, max_tokens=5))


def test_a_request_that_can_never_fit_the_pool_is_refused_on_arrival() -> None:
    with pytest.raises(RequestRefused, match="KV cache of 32 tokens"):
        make().add(ask(prompt=30, max_tokens=4))


def test_a_request_that_just_fits_the_pool_runs_to_its_end() -> None:
    scheduler = make()
    request = ask(prompt=30, max_tokens=3)
    scheduler.add(request)
    while scheduler.has_work:
        run_step(scheduler)
    assert request.num_output_tokens == 3


def test_an_id_in_use_is_refused() -> None:
    scheduler = make()
    scheduler.add(ask())
    with pytest.raises(UserError, match="'a'"):
        scheduler.add(ask())


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ({"max_tokens": 9}, FinishReason.STOP),
        ({"max_tokens": 9, "ignore_eos": True, "stop_token_ids": (7,)}, FinishReason.STOP),
        ({"max_tokens": 1, "ignore_eos": True}, FinishReason.LENGTH),
    ],
)
def test_a_request_ends_at_eos_at_a_stop_token_or_at_its_length(sampling: dict, reason: FinishReason) -> None:
    scheduler = make(eos=(7,))
    request = ask(**sampling)
    scheduler.add(request)
    run_step(scheduler, token=7)
    assert request.finish_reason is reason
    assert not scheduler.has_work


def test_history_tells_queue_admission_chunks_preemption_and_end() -> None:
    scheduler = make(num_blocks=5, max_num_batched_tokens=12)
    first = ask("a", prompt=8, max_tokens=5)
    second = Request("b", [90 + i for i in range(9)], SamplingParams(max_tokens=3))
    scheduler.add(first)
    scheduler.add(second)
    while scheduler.has_work:
        run_step(scheduler)
    told = [(e.kind, e.tokens, e.blocks) for e in second.history]
    assert told == [
        ("queued", 9, 0),
        ("admitted", 0, 1),
        ("chunk", 4, 1),
        ("preempted", 4, 1),
        ("admitted", 4, 3),
        ("chunk", 5, 3),
        ("finished", 3, 3),
    ]
    assert (second.num_preemptions, second.num_recomputed_tokens) == (1, 0)


def test_tokens_computed_twice_are_counted_once_each_time() -> None:
    scheduler = make(num_blocks=5)
    scheduler.kv.enable_prefix_caching = False
    scheduler.add(ask("a", prompt=8, max_tokens=5, ignore_eos=True))
    victim = ask("b", prompt=8, max_tokens=5, ignore_eos=True)
    scheduler.add(victim)
    recomputed = 0
    while scheduler.has_work:
        plan = scheduler.schedule()
        recomputed += plan.recomputed_tokens
        scheduler.finish_step(plan, StepResult([1] * sum(s.samples for s in plan.scheduled)))
    assert victim.num_preemptions == 1
    assert recomputed == victim.num_recomputed_tokens == 8


def test_a_request_that_was_queued_before_is_refused() -> None:
    scheduler = make()
    request = ask(max_tokens=1)
    scheduler.add(request)
    run_step(scheduler)
    with pytest.raises(UserError, match="queued before"):
        scheduler.add(request)


@pytest.mark.parametrize("sampling", [{"temperature": float("nan")}, {"max_tokens": 1.5}, {"max_tokens": 0}])
def test_sampling_that_cannot_be_is_refused(sampling: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="is not possible"):
        SamplingParams(**sampling)
