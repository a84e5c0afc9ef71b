"""Who is turned away at the door or from the queue, when, and with what advice."""

from typing import Any

import pytest

from engine.errors import RequestShed
from engine.request import FinishReason
from tests.engine.played_scheduler import SECOND, Played


def busy(running: int = 1, **config: Any) -> Played:
    """All seats taken for a long time, and a step that has seen it."""
    played = Played(max_num_seqs=running, **config)
    for number in range(running):
        played.add(f"r{number}x4/500")
    played.step()
    return played


def shed(played: Played, text: str, **fields: Any) -> RequestShed:
    with pytest.raises(RequestShed) as caught:
        played.add(text, **fields)
    return caught.value


def test_a_request_that_finds_a_full_queue_is_turned_away_with_the_reason() -> None:
    played = busy(max_queue_len=2)
    played.add("A4/1 B4/1")
    refusal = shed(played, "C4/1")
    assert refusal.limit == "max_queue_len"
    assert "C" in str(refusal)
    assert "2 requests wait already, max_queue_len=2" in str(refusal)
    assert refusal.retry_after_s >= 1


def test_one_who_was_turned_away_leaves_no_trace() -> None:
    played = busy(max_queue_len=1)
    played.add("A4/1")
    shed(played, "B4/1")
    played.scheduler.check_integrity()
    assert len(played.scheduler.room) == 1
    assert not played.scheduler.abort("B")


def test_those_who_will_find_a_seat_at_once_do_not_count_as_waiting() -> None:
    played = Played(max_num_seqs=4, max_queue_len=1)
    played.add("A4/1 B4/1 C4/1 D4/1 E4/1")
    assert shed(played, "F4/1").limit == "max_queue_len"


def test_those_the_next_step_has_no_budget_for_count_as_waiting() -> None:
    """256 seats, but a step of 64 tokens begins two prompts of 60."""
    played = Played(max_num_seqs=256, max_num_batched_tokens=64, max_queue_len=1)
    played.add("A60/1 B60/1 C60/1")
    assert shed(played, "D60/1").limit == "max_queue_len"


def test_a_dynamic_batch_lets_in_no_more_than_it_takes() -> None:
    played = Played(batching="dynamic", max_queue_delay=1, preferred_batch_size=2, max_queue_len=1)
    played.add("A4/1 B4/1 C4/1")
    assert shed(played, "D4/1").limit == "max_queue_len"


def test_free_seats_do_not_help_while_the_cache_is_what_is_full() -> None:
    played = Played(num_blocks=4, max_num_seqs=100, max_queue_len=1)
    played.add("A12/4 B8/1")
    played.step()
    assert shed(played, "C4/1").limit == "max_queue_len"


def test_seats_of_a_closed_batch_are_not_free() -> None:
    played = Played(max_num_seqs=4, max_queue_len=1, batching="static")
    played.add("A4/9")
    played.step()
    played.add("B4/1")
    assert shed(played, "C4/1").limit == "max_queue_len"


def test_queued_tokens_are_limited_but_one_request_may_always_wait() -> None:
    played = busy(max_queue_tokens=10)
    played.add("A50/1")
    refusal = shed(played, "B4/1")
    assert refusal.limit == "max_queue_tokens"
    assert "50 prompt tokens wait already" in str(refusal)
    played.scheduler.abort("A")
    played.add("C6/1 D4/1")
    assert shed(played, "E1/1").limit == "max_queue_tokens"


def test_the_tokens_of_those_who_will_find_a_seat_do_not_count_as_waiting() -> None:
    played = Played(max_num_seqs=4, max_queue_tokens=25)
    played.add("A10/1 B10/1 C10/1 D10/1 E10/1 F10/1")
    assert shed(played, "G10/1").limit == "max_queue_tokens"


def test_a_preempted_request_counts_for_no_limit() -> None:
    played = Played(num_blocks=5, max_queue_len=1)
    played.add("A8/9 B8/9")
    played.step()
    assert played.step().preempted == [played.requests["B"]]
    played.add("C4/1")
    assert shed(played, "D4/1").limit == "max_queue_len"


def test_a_request_that_waits_too_long_is_ended_with_an_event() -> None:
    played = busy(queue_timeout=2.5)
    played.add("A4/1")
    for _ in range(4):
        played.step()
    assert played.requests["A"].finish_reason is FinishReason.QUEUE_TIMEOUT
    (event,) = (e for e in played.events if e.request_id == "A")
    assert (event.token_ids, event.finish_reason) == ((), "queue_timeout")
    assert len(played.scheduler.room) == 0


def test_a_request_that_ran_before_does_not_time_out() -> None:
    played = Played(num_blocks=5, queue_timeout=2)
    played.add("A8/9 B8/9")
    assert played.order_of_admission() == ["A", "B"]
    assert played.requests["B"].num_preemptions
    assert all(r.finish_reason is FinishReason.LENGTH for r in played.requests.values())


def test_the_predicted_wait_is_that_of_the_queue_at_the_rate_it_was_served() -> None:
    """One seat, a request of 10 prompt tokens leaves it every second."""
    played = Played(max_num_seqs=1, max_predicted_wait=5.0)
    for number in range(5):
        played.add(f"a{number}x10/1")
    for _ in range(3):
        played.step()
    # a3 and a4 wait; what comes next has 20, 30, 40 and 50 tokens before it.
    for name in ("b", "c", "d", "e"):
        played.add(f"{name}10/1")
    refusal = shed(played, "f10/1")
    assert refusal.limit == "max_predicted_wait"
    assert "6.0 s" in str(refusal)
    assert refusal.retry_after_s == pytest.approx(1.0)


def test_before_anyone_was_served_the_queue_is_predicted_to_last_as_long_as_it_has() -> None:
    played = busy(max_predicted_wait=3.0)
    played.add("A10/1")
    played.step()
    played.add("B10/1")
    for _ in range(4):
        played.step()
    assert shed(played, "C10/1").limit == "max_predicted_wait"


def test_the_breaker_lets_requests_in_again_when_the_queue_has_drained() -> None:
    played = Played(max_num_seqs=1, max_predicted_wait=2.0)
    played.add("a10/1 b10/1 c10/1 d10/1")
    played.step()
    played.step()
    played.add("e10/1")
    shed(played, "f10/1")
    played.steps()
    played.add("g10/1")
    assert played.steps() == ["{g10}"]


def test_before_anyone_was_served_a_long_wait_is_predicted_in_full() -> None:
    played = busy(max_predicted_wait=100.0)
    played.add("A10/1")
    for _ in range(90):
        played.step()
    played.add("B10/1")
    for _ in range(20):
        played.step()
    assert shed(played, "C10/1").limit == "max_predicted_wait"


def test_clients_that_hang_up_leave_no_backlog_behind() -> None:
    """All requests are aborted between two steps, then nothing comes for an hour."""
    played = Played(max_num_seqs=1, max_predicted_wait=5.0, max_queue_len=1)
    played.add("a10/1")
    played.step()
    played.add("b10/9 c10/1")
    played.step()
    for name in "bc":
        played.scheduler.abort(name)
    played.clock.advance(3600 * SECOND)
    played.add("d10/2 e10/1")
    played.step()
    assert played.now_s > 3600
    assert shed(played, "f10/1").limit == "max_queue_len"
    played.steps()
    assert played.requests["e"].is_finished


def test_the_queue_forgets_requests_that_have_gone() -> None:
    """A starving request at the head of time, and hundreds that came and went behind it."""
    played = Played(max_num_seqs=1, policy="priority", queue_timeout=5)
    played.add("first1/900")
    played.step()
    played.add("late4/1", priority=9)
    for second in range(300):
        played.add(f"x{second}x4/1")
        played.step()
    room = played.scheduler.room
    assert len(room.waiting) == room.admission.num_newcomers <= 7
    assert len(room.waiting._heap) <= 2 * len(room.waiting)


@pytest.mark.parametrize(("policy", "is_let_in"), [("fcfs", False), ("priority", True), ("tiered", True)])
def test_a_request_of_a_higher_class_does_not_wait_for_the_lower_classes(policy: str, is_let_in: bool) -> None:
    played = Played(max_num_seqs=1, max_predicted_wait=2.0, policy=policy)
    for name in "abcde":
        played.add(f"{name}10/1", priority=1)
    played.step()
    played.step()
    if is_let_in:
        played.add("urgent10/1", priority=0)
        played.step()
        assert played.admitted_s("urgent") == 2
    else:
        shed(played, "urgent10/1", priority=0)


def test_the_time_of_waiting_counts_from_the_queue_and_not_from_an_earlier_try() -> None:
    played = busy(queue_timeout=5)
    played.clock.advance(20 * SECOND)
    played.add("A4/1", arrival_ns=0, attempt=1)
    played.step()
    assert not played.requests["A"].is_finished
