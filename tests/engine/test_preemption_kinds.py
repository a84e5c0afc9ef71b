"""Who makes room, and what becomes of its cache."""

from typing import Any

import pytest

from engine.request import RequestStatus
from engine.scheduler.plan import StepPlan
from engine.scheduler.preemption import PreemptionCost
from tests.engine.played_scheduler import Played

TIGHT: dict[str, Any] = {"num_blocks": 5, "num_swap_blocks": 8}


def until_preempted(played: Played) -> StepPlan:
    return next(plan for plan in played.plans() if plan.preempted)


def victims(texts: str, priorities: dict[str, int] | None = None, num_blocks: int = 7, **config: Any) -> list[str]:
    """Who is preempted first. Requests are admitted in the order of their writing."""
    played = Played(num_blocks=num_blocks, **config)
    for text in texts.split():
        played.add(text, priority=(priorities or {}).get(text[0], 0))
        played.step()
    return [r.request_id for r in until_preempted(played).preempted]


MIX = "A8/20 B4/20 C8/20"


@pytest.mark.parametrize(
    ("victim", "policy", "expected"),
    [
        ("last", "fcfs", "C"),
        ("last", "priority", "C"),
        ("fewest_tokens", "fcfs", "B"),
        ("lowest_priority", "fcfs", "A"),
        ("auto", "fcfs", "C"),
        ("auto", "sjf", "C"),
        ("auto", "priority", "A"),
        ("auto", "tiered", "A"),
    ],
)
def test_the_victim_is_the_configured_one(victim: str, policy: str, expected: str) -> None:
    found = victims(MIX, {"A": 5, "B": 1, "C": 1}, policy=policy, preemption_victim=victim)
    assert found == [expected]


def test_of_equal_victims_the_one_admitted_last_makes_room() -> None:
    assert victims("A8/9 B8/9", num_blocks=5, preemption_victim="fewest_tokens") == ["B"]
    assert victims("A8/9 B8/9", num_blocks=5, preemption_victim="lowest_priority") == ["B"]


def test_a_swapped_request_goes_on_where_it_was() -> None:
    played = Played(preemption_mode="swap", **TIGHT)
    played.add("A8/5 B8/5")
    assert played.steps() == ["{A8,B8}", "{A1} preempts B", "{A1}", "{A1}", "{A1}", "{B1}", "{B1}", "{B1}", "{B1}"]
    b = played.requests["B"]
    assert (b.num_preemptions, b.num_swaps, b.num_recomputed_tokens) == (1, 1, 0)


def test_copies_name_the_blocks_of_computed_tokens_only() -> None:
    played = Played(preemption_mode="swap", **TIGHT)
    played.add("A8/5 B8/5")
    played.step()
    table = list(played.requests["B"].block_table)
    plan = played.step()
    assert plan.swap_out == [(table[0], 0), (table[1], 1)]
    assert (plan.preemptions_swap, played.kv.host.num_free) == (1, 6)
    back = next(p for p in played.plans() if p.swap_in)
    assert [host for host, _ in back.swap_in] == [0, 1]
    assert [block for _, block in back.swap_in] == played.requests["B"].block_table[:2]
    assert played.kv.host.num_free == 8


def test_the_history_tells_kind_tokens_blocks_and_for_whom() -> None:
    played = Played(preemption_mode="swap", **TIGHT)
    played.add("A8/5 B8/5")
    played.steps()
    events = [(e.kind, e.tokens, e.blocks, e.detail) for e in played.requests["B"].history]
    assert events == [
        ("queued", 8, 0, ""),
        ("admitted", 0, 2, ""),
        ("chunk", 8, 2, ""),
        ("preempted", 8, 2, "swap:"),
        ("admitted", 8, 3, "swap"),
        ("finished", 5, 3, "length"),
    ]


def test_a_victim_of_another_is_told_who_got_the_room() -> None:
    played = Played(num_blocks=4, preemption_victim="fewest_tokens")
    played.add("A7/9 B5/9")
    played.steps()
    assert [e.detail for e in played.requests["B"].history if e.kind == "preempted"] == ["recompute:A"]


def test_without_room_in_host_memory_the_victim_is_recomputed() -> None:
    played = Played(preemption_mode="swap", num_blocks=5, num_swap_blocks=1)
    played.add("A8/5 B8/5")
    plan = until_preempted(played)
    assert (len(plan.preempted), plan.preemptions_swap, plan.swap_out) == (1, 0, [])
    assert played.requests["B"].history[-1].detail == "recompute:"
    assert played.steps() == ["{A1}", "{A1}", "{A1}", "{B9}", "{B1}", "{B1}", "{B1}"]
    assert played.requests["B"].num_recomputed_tokens == 8


def test_swapped_requests_come_back_before_new_ones_are_admitted() -> None:
    played = Played(preemption_mode="swap", **TIGHT)
    played.add("A8/5 B8/5")
    until_preempted(played)
    played.add("C4/1")
    assert played.steps() == ["{A1}", "{A1}", "{A1}", "{B1,C4}", "{B1}", "{B1}", "{B1}"]


def test_a_new_request_waits_behind_a_swapped_one_even_if_it_would_fit() -> None:
    played = Played(preemption_mode="swap", **TIGHT)
    played.add("A8/5 B8/5")
    until_preempted(played)
    played.add("C4/1")
    plan = played.step()
    assert plan.blocked_request == "B"
    assert played.kv.pool.num_free >= 1


def test_recomputed_ones_wait_in_the_queue_of_the_policy() -> None:
    played = Played(preemption_mode="recompute", num_blocks=5)
    played.add("A8/5 B8/5")
    until_preempted(played)
    played.add("C4/1")
    assert played.steps()[:4] == ["{A1}", "{A1}", "{A1}", "{B9,C4}"]


def test_an_aborted_swapped_request_gives_its_host_blocks_back() -> None:
    played = Played(preemption_mode="swap", **TIGHT)
    played.add("A8/5 B8/5")
    until_preempted(played)
    assert played.requests["B"].status is RequestStatus.SWAPPED
    assert played.scheduler.abort("B")
    assert played.kv.host.num_free == 8
    assert played.steps() == ["{A1}", "{A1}", "{A1}"]


def test_what_is_still_found_in_the_cache_is_not_copied_back() -> None:
    played = Played(preemption_mode="swap", num_blocks=6, num_swap_blocks=8, caching=True)
    played.add("A8/9 B8/9")
    assert len(until_preempted(played).swap_out) == 3
    back = next(p for p in played.plans() if "B" in {s.request.request_id for s in p.scheduled})
    # Three blocks went out. Two were full, so they could be found: A needed only the third.
    assert [host for host, _ in back.swap_in] == [2]
    played.steps()
    assert played.requests["B"].num_output_tokens == 9


def seen(cost: PreemptionCost, played: Played, seconds_per_token: float, base_s: float = 5.0) -> None:
    """Let the cost model see a step of prefill and one of decode, at that speed."""
    for _ in range(2):
        plan = played.step()
        prefill = sum(s.num_tokens for s in plan.scheduled if not s.is_decode)
        cost.observe(plan, round((base_s + prefill * seconds_per_token) * 1e9))


@pytest.mark.parametrize(("seconds_per_token", "kind"), [(0.001, "recompute"), (0.1, "swap")])
def test_auto_takes_what_is_predicted_to_cost_less(seconds_per_token: float, kind: str) -> None:
    """Two blocks of 100 bytes, out and in, at 1000 bytes/s: 0.4 s. Eight tokens again: 0.008 s or 0.8 s, however long a
    step takes that has none of them."""
    cost = PreemptionCost(bytes_per_block=100, link_bytes_per_s=1000)
    played = Played(preemption_mode="auto", cost=cost, **TIGHT)
    played.add("X4/2")
    seen(cost, played, seconds_per_token)
    played.add("A8/5 B8/5")
    until_preempted(played)
    assert played.requests["B"].history[-1].detail == f"{kind}:"
    assert cost.swap_s(2) == pytest.approx(0.4)
    assert cost.recompute_s(8) == pytest.approx(8 * seconds_per_token)


def test_auto_recomputes_what_it_cannot_predict() -> None:
    unknown_link, unseen_prefill = PreemptionCost(100, None), PreemptionCost(100, 1000)
    assert not unknown_link.swap_is_cheaper(8, 2)
    assert not unseen_prefill.swap_is_cheaper(8, 2)


def test_steps_that_swap_and_steps_without_work_measure_nothing() -> None:
    cost = PreemptionCost(100, 1000)
    played = Played(cost=cost)
    played.add("A40/3")
    seen(cost, played, 0.01)
    before = cost.recompute_s(1)
    cost.observe(StepPlan(), 10**12)
    swapping = played.step()
    swapping.swap_in.append((0, 0))
    cost.observe(swapping, 10**12)
    assert cost.recompute_s(1) == before == pytest.approx(0.01)


def test_the_cost_of_prefill_follows_the_recent_past() -> None:
    cost = PreemptionCost(100, 1000)
    played = Played(cost=cost)
    played.add("A500/2")
    prefill, decode = played.step(), played.step()
    for seconds_per_token in (0.001, 0.01):
        for _ in range(5000):
            cost.observe(prefill, round((1 + 500 * seconds_per_token) * 1e9))
            cost.observe(decode, 10**9)
    assert cost.recompute_s(100) == pytest.approx(1.0, rel=0.01)


def test_prefill_that_seems_to_cost_nothing_is_not_predicted_to_gain_time() -> None:
    cost = PreemptionCost(100, 1000)
    played = Played(cost=cost)
    played.add("A40/3")
    seen(cost, played, -0.01)
    assert cost.recompute_s(100) == 0
