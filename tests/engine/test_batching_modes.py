"""Batches that leave together, batches that wait to grow, and requests that come and go."""

from typing import Any

import pytest

from engine.config import BATCHING_MODES
from engine.scheduler.plan import WaitCause
from tests.engine.played_scheduler import SECOND, Played


def steps(texts: str, **config: Any) -> list[str]:
    played = Played(**config)
    played.add(texts)
    return played.steps()


TWO_SEATS: dict[str, Any] = {"max_num_seqs": 2}
ABC = "A8/2 B8/4 C8/2"


def test_a_static_batch_leaves_together() -> None:
    expected = ["{A8,B8}", "{A1,B1}", "{B1}", "{B1}", "{C8}", "{C1}"]
    assert steps(ABC, batching="static", **TWO_SEATS) == expected


def test_continuous_batching_fills_a_seat_as_soon_as_it_is_free() -> None:
    expected = ["{A8,B8}", "{A1,B1}", "{B1,C8}", "{B1,C1}"]
    assert steps(ABC, max_num_batched_tokens=64, **TWO_SEATS) == expected


def test_continuous_batching_with_a_small_budget_never_stalls_a_decode() -> None:
    expected = ["{A8}", "{A1,B7}", "{B1,C7}", "{B1,C1}", "{B1,C1}", "{B1}"]
    assert steps(ABC, max_num_batched_tokens=8, **TWO_SEATS) == expected


def test_a_static_batch_reads_all_its_prompts_before_it_decodes() -> None:
    expected = ["{A8,B2}", "{B6}", "{A1,B1}"]
    assert steps("A8/2 B8/2", batching="static", max_num_batched_tokens=10) == expected


def test_a_static_batch_is_formed_of_those_that_wait_when_it_is_formed() -> None:
    played = Played(batching="static", max_num_seqs=8, max_num_batched_tokens=8)
    played.add("A8/2 B8/2")
    played.step()
    played.add("C8/2")
    assert played.steps() == ["{B8}", "{A1,B1}", "{C8}", "{C1}"]


def test_who_waits_for_a_batch_to_leave_waits_for_the_batch() -> None:
    played = Played(batching="static", **TWO_SEATS)
    played.add(ABC)
    assert [played.step().wait_cause for _ in range(5)] == 4 * [WaitCause.BATCH] + [None]


def test_a_batch_that_does_not_fit_the_cache_goes_on_with_those_that_do() -> None:
    played = Played(batching="static", num_blocks=7)
    played.add("A8/2 B8/4 C16/2")
    assert played.steps() == ["{A8,B8}", "{A1,B1}", "{B1}", "{B1}", "{C16}", "{C1}"]


def test_a_swapped_member_comes_back_into_its_batch_and_a_recomputed_one_into_the_next() -> None:
    def run(mode: str) -> list[str]:
        return steps("A8/5 B8/7 C8/1", batching="static", num_blocks=5, num_swap_blocks=9, preemption_mode=mode)

    assert run("recompute") == ["{A8,B8}", "{A1} preempts B", *["{A1}"] * 3, "{B9,C8}", *["{B1}"] * 5]
    assert run("swap") == ["{A8,B8}", "{A1} preempts B", *["{A1}"] * 3, *["{B1}"] * 6, "{C8}"]


def test_a_dynamic_batch_of_the_preferred_size_does_not_wait() -> None:
    played = Played(batching="dynamic", max_queue_delay=10, preferred_batch_size=2)
    played.add("A4/1 B4/1 C4/1")
    assert played.scheduler.idle_until_ns is None
    played.step()
    assert played.now_s == 1
    assert [r for r in "ABC" if played.requests[r].is_finished] == ["A", "B"]


def test_a_dynamic_batch_waits_for_its_first_request_at_most_the_delay() -> None:
    played = Played(batching="dynamic", max_queue_delay=10, preferred_batch_size=3)
    played.add("A4/1")
    assert played.scheduler.idle_until_ns == 10 * SECOND
    played.clock.advance(4 * SECOND)
    played.add("B4/1")
    assert played.scheduler.idle_until_ns == 10 * SECOND
    assert played.steps() == ["{A4,B4}"]
    assert played.admitted_s("A") == 10


def test_who_comes_while_nothing_runs_and_the_batch_grows_is_seen_to_wait_for_it() -> None:
    played = Played(batching="dynamic", max_queue_delay=10, preferred_batch_size=2)
    played.add("A4/1 B4/1")
    assert [played.requests[name].history[0].detail for name in "AB"] == ["batch", ""]


def test_a_dynamic_batch_leaves_as_soon_as_its_preferred_size_has_come() -> None:
    played = Played(batching="dynamic", max_queue_delay=10, preferred_batch_size=2)
    played.add("A4/1")
    played.clock.advance(SECOND)
    played.add("B4/1")
    assert played.steps() == ["{A4,B4}"]
    assert played.admitted_s("A") == 1


def test_without_a_preferred_size_a_dynamic_batch_waits_for_all_seats() -> None:
    played = Played(batching="dynamic", max_queue_delay=10, max_num_seqs=2)
    played.add("A4/1")
    assert played.scheduler.idle_until_ns == 10 * SECOND
    played.add("B4/1")
    assert played.scheduler.idle_until_ns is None


def test_who_waited_behind_a_running_batch_does_not_wait_once_more() -> None:
    played = Played(batching="dynamic", max_queue_delay=3, preferred_batch_size=2)
    played.add("A4/6 B4/6")
    played.step()
    played.add("C4/1")
    played.steps()
    assert played.admitted_s("C") == 6


def test_a_preempted_request_does_not_wait_for_a_batch_to_grow() -> None:
    played = Played(batching="dynamic", max_queue_delay=100, preferred_batch_size=2, num_blocks=5)
    played.add("A8/5 B8/5")
    played.steps(5)
    assert played.requests["A"].is_finished
    played.add("C4/1")
    assert played.scheduler.idle_until_ns is None
    played.steps()
    assert played.requests["B"].is_finished
    assert played.now_s < 100


def test_an_aborted_request_does_not_hold_up_a_growing_batch() -> None:
    played = Played(batching="dynamic", max_queue_delay=10, preferred_batch_size=2)
    played.add("A4/1")
    played.clock.advance(5 * SECOND)
    played.add("B4/1")
    played.scheduler.abort("A")
    assert played.scheduler.idle_until_ns == 15 * SECOND
    assert played.steps() == ["{B4}"]


@pytest.mark.parametrize("mode", BATCHING_MODES)
def test_a_request_that_times_out_while_a_batch_grows_is_told_in_time(mode: str) -> None:
    played = Played(batching=mode, max_queue_delay=10, preferred_batch_size=2, queue_timeout=4, max_num_seqs=2)
    played.add("A4/9 B4/9")
    played.step()
    played.add("C4/1 D4/1")
    played.steps()
    told = [(e.request_id, e.time_ns / SECOND) for e in played.events if e.finish_reason == "queue_timeout"]
    # At the end of the step in which it became known: steps take a second.
    assert told == [("C", 6), ("D", 6)]
