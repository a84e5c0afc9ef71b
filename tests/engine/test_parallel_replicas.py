"""Replicas side by side on one virtual clock: time, routing, ends, and the same answer every time."""

from typing import Any

import pytest

from engine.config import CacheConfig, SchedulerConfig
from engine.errors import UserError
from engine.executor.simulated import FixedStepTime, SimulatedExecutor
from engine.model.arch import ModelArch
from engine.parallel.replicas import ReplicatedEngine
from engine.request import Request, SamplingParams
from engine.scheduler.plan import TokenEvent
from engine.trace import IterationRecord
from tests.engine.small_replicas import run_to_end

ARCH = ModelArch("toy", "llama", 64, 2, 4, 2, 16, 128, 256, 512)
MS = 1_000_000


def engine(count: int = 2, router: str = "round_robin", per_token_s: float = 0.0, **options: Any) -> ReplicatedEngine:
    executors = [
        SimulatedExecutor(
            ARCH,
            FixedStepTime(0.010, per_token_s),
            device_name="toy",
            device_memory_bytes=1 << 30,
            max_model_len=256,
        )
        for _ in range(count)
    ]
    return ReplicatedEngine(executors, SchedulerConfig(**options), CacheConfig(num_gpu_blocks_override=64), router)


def request(name: str, prompt_tokens: int = 4, max_tokens: int = 3) -> Request:
    return Request(name, [1] * prompt_tokens, SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True))


def test_replicas_run_side_by_side() -> None:
    group = engine()
    for name in ("a", "b"):
        group.add_request(request(name))
    events, records = run_to_end(group)
    assert group.clock.now_ns() == 30 * MS
    assert [(e.request_id, e.time_ns // MS) for e in events] == [(n, t) for t in (10, 20, 30) for n in ("a", "b")]
    assert [(r.replica, r.iteration, r.t_start // MS) for r in records] == [
        (n, i, 10 * i) for i in range(3) for n in (0, 1)
    ]


def test_what_a_step_brings_is_told_when_it_ends_and_no_arrival_is_kept_waiting_by_it() -> None:
    group = engine()
    group.add_request(request("a"))
    assert group.idle_until_ns is None
    assert group.step() == ([], None)
    assert group.idle_until_ns == 10 * MS
    group.clock.sleep_until(4 * MS)
    group.add_request(request("b", max_tokens=1))  # to the idle replica, while the other one is within a step
    events, records = run_to_end(group)
    assert [(e.request_id, e.time_ns // MS) for e in events] == [("a", 10), ("b", 14), ("a", 20), ("a", 30)]
    assert [r.t_start // MS for r in records if r.replica == 1] == [4]


def test_a_replica_that_is_busy_takes_an_arrival_in_at_its_next_step() -> None:
    group = engine(1)
    group.add_request(request("a", max_tokens=2))
    group.step()
    group.clock.sleep_until(4 * MS)
    late = request("late", max_tokens=1)
    group.add_request(late)
    events, _ = run_to_end(group)
    assert [(e.request_id, e.time_ns // MS) for e in events] == [("a", 10), ("a", 20), ("late", 20)]
    assert late.history[0].time_ns // MS == 10  # where the scheduler first saw it


def test_a_router_sees_a_request_as_in_flight_until_its_end_has_been_told() -> None:
    group = engine(router="least_in_flight")
    group.add_request(request("a", max_tokens=1))
    group.step()
    group.clock.sleep_until(5 * MS)
    for name in ("b", "c"):
        group.add_request(request(name, max_tokens=1))
    _, records = run_to_end(group)
    # At 5 ms the first replica is still within the only step of a, so b goes to the second; then both have one.
    assert [(r.replica, r.t_start // MS) for r in records] == [(0, 0), (1, 5), (0, 10)]


@pytest.mark.parametrize("router", ["round_robin", "least_in_flight", "least_kv", "prefix_affinity"])
def test_every_request_ends_and_says_who_served_it(router: str) -> None:
    group = engine(3, router, per_token_s=0.001, max_num_seqs=2)
    requests = [request(str(i), prompt_tokens=1 + 7 * i % 40, max_tokens=1 + 5 * i % 9) for i in range(30)]
    for one in requests:
        group.add_request(one)
    events, records = run_to_end(group)
    assert sum(e.finish_reason is not None for e in events) == 30
    assert {one.replica for one in requests} == {r.replica for r in records} == {0, 1, 2}
    assert [e.time_ns for e in events] == sorted(e.time_ns for e in events)


def test_one_replica_does_what_an_engine_does() -> None:
    group, alone = engine(1), engine(1)
    plain = alone._replicas[0].engine
    for i in range(6):
        group.add_request(request(str(i), 3 + i, 2 + i))
        plain.add_request(request(str(i), 3 + i, 2 + i))
    expected = []
    while plain.has_work:
        expected += plain.step()[0]
    assert run_to_end(group)[0] == expected


def test_abort_ends_a_request_in_a_step_under_way_and_leaves_the_engine_idle() -> None:
    group = engine()
    group.add_request(request("a", max_tokens=1))
    group.step()
    assert group.abort("a")
    assert not group.abort("a")
    assert not group.has_work
    group.reconfigure(scheduler=SchedulerConfig(max_num_seqs=1))
    group.add_request(request("b", max_tokens=1))
    assert [e.request_id for e in run_to_end(group)[0]] == ["b"]


def test_abort_of_one_request_leaves_its_neighbours_in_the_step() -> None:
    group = engine(1)
    for name in ("a", "b"):
        group.add_request(request(name, max_tokens=1))
    group.step()
    group.abort("a")
    assert [e.request_id for e in run_to_end(group)[0]] == ["b"]


def test_restart_begins_again_at_time_zero_with_the_same_outcome() -> None:
    group = engine(3, "least_kv", per_token_s=0.001)

    def play() -> tuple[list[TokenEvent], list[IterationRecord]]:
        group.restart(7)
        for i in range(12):
            group.add_request(request(str(i), 1 + 5 * i % 17, 1 + i % 4))
        return run_to_end(group)

    assert play() == play()


def test_reconfigure_needs_idle_replicas() -> None:
    group = engine()
    group.add_request(request("a"))
    with pytest.raises(RuntimeError, match="idle engine"):
        group.reconfigure()


def test_unknown_router_is_refused() -> None:
    with pytest.raises(UserError, match="router 'magic' does not exist"):
        engine(router="magic")
