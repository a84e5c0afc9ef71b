"""How long requests waited and for what: cases worked out by hand, and the rule itself taken step by step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import RequestEvent
from engine.trace import IterationRecord
from workloads.records import RequestRecord
from workloads.waits import WAIT_CAUSES, Waits, wait_times

CAUSES = (None, "seats", "budget", "blocks", "batch")


def steps_of(*rows: tuple[int, str | None, str | None]) -> list[IterationRecord]:
    """Steps from (t_start, wait_cause, blocked_request)."""
    names = [name for name in IterationRecord.__dataclass_fields__ if name not in ("wait_cause", "blocked_request")]
    return [
        IterationRecord(
            **dict.fromkeys(names, 0) | {"t_start": t, "t_end": t + 1}, wait_cause=cause, blocked_request=who
        )
        for t, cause, who in rows
    ]


def request_of(
    t_sched: int,
    admit: int | None,
    end: int | None,
    returns: Sequence[tuple[int, int | None]] = (),
    tries: Sequence[tuple[int, int | None]] = (),
    **changes: Any,
) -> RequestRecord:
    """A request with preemptions and returns; before those, times of being turned away and sent again.

    A return, or a sending, of None never came. One that is turned away as it is sent never got into the queue.
    """
    history = [RequestEvent(t_sched, "queued", 10)]
    for i, (away, again) in enumerate(tries):
        history.append(RequestEvent(away, "turned_away", 0, detail="max_queue_len"))
        if again is not None and (i + 1 == len(tries) or tries[i + 1][0] > again):
            history.append(RequestEvent(again, "queued", 10))
    if admit is not None:
        history.append(RequestEvent(admit, "admitted", 0))
    for preempted, admitted in returns:
        history.append(RequestEvent(preempted, "preempted", 10, 1, "recompute:req-9"))
        if admitted is not None:
            history.append(RequestEvent(admitted, "admitted", 0))
    fields: dict[str, Any] = dict.fromkeys(RequestRecord.__dataclass_fields__)
    fields |= {"request_id": "req-0", "t_sched": t_sched, "t_send": t_sched, "t_admit": admit, "t_end": end}
    return RequestRecord(**fields | {"history": tuple(history)} | changes)


def waits_of(request: RequestRecord, steps: Sequence[IterationRecord]) -> dict[str, int]:
    """The causes that occur, and their times."""
    numbers = wait_times([request], steps).by_cause[0]
    return {cause: int(n) for cause, n in zip(WAIT_CAUSES, numbers, strict=True) if n}


def test_a_request_waits_for_the_step_under_way_and_then_for_what_the_next_ones_lack() -> None:
    steps = steps_of((0, "budget", None), (10, "seats", None), (20, "budget", None), (30, None, None))
    assert waits_of(request_of(4, 30, 99), steps) == {"step": 6, "seats": 10, "budget": 10}


def test_a_request_that_waits_for_a_batch_to_grow_while_nothing_runs_waits_for_the_batch() -> None:
    steps = steps_of((0, None, None), (30, "batch", None), (40, None, None))
    queued = RequestEvent(12, "queued", 10, detail="batch")
    request = request_of(10, 40, 99, t_send=12, history=(queued, RequestEvent(40, "admitted", 0)))
    assert waits_of(request, steps) == {"step": 2, "batch": 28}


def test_a_request_that_comes_as_a_step_begins_is_seen_by_that_step() -> None:
    steps = steps_of((0, "budget", None), (10, "seats", None), (20, None, None))
    assert waits_of(request_of(10, 20, 99), steps) == {"seats": 10}


def test_only_the_request_at_the_head_waits_for_blocks() -> None:
    steps = steps_of((0, "blocks", "req-0"), (10, "blocks", "req-1"), (30, None, None))
    assert waits_of(request_of(0, 30, 99), steps) == {"blocks": 10, "behind_head": 20}
    assert waits_of(request_of(0, 30, 99, request_id="req-1"), steps) == {"blocks": 20, "behind_head": 10}
    assert waits_of(request_of(0, 30, 99, request_id="req-2"), steps) == {"behind_head": 30}


def test_a_preempted_request_waits_for_what_the_step_that_took_its_room_lacked() -> None:
    steps = steps_of((0, None, None), (10, "blocks", "req-9"), (20, "blocks", "req-0"), (40, None, None))
    request = request_of(0, 0, 99, returns=[(13, 40)])
    assert waits_of(request, steps) == {"behind_head": 7, "blocks": 20}
    assert wait_times([request], steps).after_preemption.tolist() == [27]


def test_a_wait_without_an_end_lasts_to_the_end_of_the_request() -> None:
    steps = steps_of((0, "seats", None), (10, "batch", None))
    assert waits_of(request_of(0, None, 35), steps) == {"seats": 10, "batch": 25}
    assert waits_of(request_of(0, 0, 35, returns=[(12, None)]), steps) == {"batch": 23}


def test_the_time_between_being_turned_away_and_being_sent_again_is_not_the_engines() -> None:
    steps = steps_of((0, "seats", None), (10, "seats", None), (20, "budget", None), (45, "seats", None))
    # In vain from 0 to 25 and at 32, and sent once more at 42.
    request = request_of(0, 50, 99, tries=[(25, 32), (32, 42)], t_send=3, attempts=3)
    assert waits_of(request, steps) == {"step": 10 + 3, "seats": 10 + 5, "budget": 5, "retry": 7 + 10}


def test_a_request_that_ends_before_it_is_sent_again_has_waited_for_that_until_its_end() -> None:
    steps = steps_of((0, "seats", None), (10, "budget", None))
    assert waits_of(request_of(0, None, 35, tries=[(12, None)]), steps) == {"seats": 10, "budget": 2, "retry": 23}
    assert waits_of(request_of(0, None, 12, tries=[(12, None)]), steps) == {"seats": 10, "budget": 2}


def test_a_request_sent_again_while_nothing_runs_waits_for_its_own_batch() -> None:
    steps = steps_of((0, "seats", None), (30, None, None))
    history = (
        RequestEvent(0, "queued", 10),
        RequestEvent(4, "turned_away", 0, detail="queue_timeout"),
        RequestEvent(20, "queued", 10, detail="batch"),
        RequestEvent(30, "admitted", 0),
    )
    assert waits_of(request_of(0, 30, 99, history=history), steps) == {"seats": 4, "retry": 16, "batch": 10}


def test_a_record_that_does_not_tell_its_tries_has_waited_for_the_engine_all_the_time() -> None:
    steps = steps_of((0, "seats", None), (10, "seats", None), (50, None, None))
    assert waits_of(request_of(0, 50, 99, t_send=3, attempts=3), steps) == {"step": 10, "seats": 40}


def test_before_any_step_and_without_a_cause_it_is_the_step() -> None:
    assert waits_of(request_of(0, 9, 99), []) == {"step": 9}
    assert waits_of(request_of(0, 9, 99, returns=[(20, 24)]), []) == {"step": 13}
    assert waits_of(request_of(0, 15, 99), steps_of((5, None, None), (10, None, None))) == {"step": 15}


def test_a_request_that_never_ended_has_waited_for_nothing_that_could_be_told() -> None:
    assert waits_of(request_of(0, None, None), steps_of((0, "seats", None))) == {}


def test_a_summary_gives_means_by_cause_and_the_sum_after_preemptions() -> None:
    steps = steps_of((0, "seats", None), (10_000_000, "budget", None))
    requests = [request_of(0, 10_000_000, 9), request_of(0, 0, 40_000_000, returns=[(20_000_000, None)])]
    assert wait_times(requests, steps).summary() == {
        **dict.fromkeys((f"mean_wait_{cause}_ms" for cause in WAIT_CAUSES), 0.0),
        "mean_wait_seats_ms": 5.0,
        "mean_wait_budget_ms": 10.0,
        "preempted_wait_s": 0.02,
    }
    nothing = wait_times([], steps).summary()
    assert nothing.pop("preempted_wait_s") == 0.0
    assert set(nothing.values()) == {None}


times = st.integers(0, 60)
RETURN, AWAY = -1, -2


@st.composite
def requests_of(draw: st.DrawFn, number: int) -> RequestRecord:
    moments = sorted(draw(st.lists(times, min_size=2, max_size=9)))
    t_sched, *rest = moments
    t_send = min(draw(st.integers(0, 5)) + t_sched, rest[0])
    end = rest.pop()
    tries: list[tuple[int, int | None]] = []
    for _ in range(draw(st.integers(0, 2))):
        if rest:
            away = rest.pop(0)
            tries.append((away, rest[0] if rest else None))
            # What comes next is the sending itself, or a try that fails at once or later.
            fails_at_once = draw(st.booleans())
            del rest[: 0 if fails_at_once else 1]
    admit = rest.pop(0) if rest else None
    pairs: list[tuple[int, int | None]] = []
    while rest:
        pairs.append((rest.pop(0), rest.pop(0) if rest else None))
    return request_of(t_sched, admit, end, pairs, tries, t_send=t_send, request_id=f"req-{number}")


@st.composite
def traces(draw: st.DrawFn) -> tuple[list[RequestRecord], list[IterationRecord]]:
    requests = [draw(requests_of(i)) for i in range(draw(st.integers(0, 4)))]
    starts = sorted(draw(st.sets(times, max_size=12)))
    rows = [
        (t, cause, draw(st.sampled_from(["req-0", "req-1", "req-7"])) if cause == "blocks" else None)
        for t in starts
        for cause in [draw(st.sampled_from(CAUSES))]
    ]
    return requests, steps_of(*rows)


def spans_of(request: RequestRecord) -> list[tuple[int, int, int]]:
    """Begin, end, and the moment from which steps are asked for the cause; RETURN after a preemption, AWAY for none."""
    assert request.t_end is not None
    assert request.t_send is not None
    spans: list[tuple[int, int, int]] = []
    begin, asked_from, waits = request.t_sched, request.t_send, True
    for event in (*request.history[1:], RequestEvent(request.t_end, "finished", 0)):
        if waits:
            spans.append((begin, event.time_ns, asked_from))
        waits = event.kind != "admitted"
        begin, asked_from = event.time_ns, {"turned_away": AWAY, "preempted": RETURN}.get(event.kind, event.time_ns)
    return spans


def cause_at(t: int, sent: int, request: RequestRecord, steps: Sequence[IterationRecord]) -> str:
    """The cause by the rule itself, at one moment."""
    if sent == AWAY:
        return "retry"
    begun = [s for s in steps if s.t_start <= t]
    if not begun or (sent >= 0 and not any(s.t_start >= sent for s in begun)) or begun[-1].wait_cause is None:
        return "step"
    cause = begun[-1].wait_cause
    return "behind_head" if cause == "blocks" and begun[-1].blocked_request != request.request_id else cause


@given(trace=traces())
def test_every_moment_of_a_wait_counts_once_under_the_cause_of_the_step_before_it(
    trace: tuple[list[RequestRecord], list[IterationRecord]],
) -> None:
    requests, steps = trace
    waits = wait_times(requests, steps)
    assert waits.by_cause.shape == (len(requests), len(WAIT_CAUSES))
    for i, request in enumerate(requests):
        spans = spans_of(request)
        moments = [cause_at(t, sent, request, steps) for begin, end, sent in spans for t in range(begin, end)]
        assert waits.by_cause[i].tolist() == [moments.count(cause) for cause in WAIT_CAUSES]
        assert waits.by_cause[i].sum() == sum(end - begin for begin, end, _ in spans)
        assert waits.after_preemption[i] == sum(end - begin for begin, end, sent in spans if sent == RETURN)


def test_waits_are_taken_and_joined_request_by_request() -> None:
    steps = steps_of((0, "seats", None), (10, "budget", None))
    waits = wait_times([request_of(0, i, 99) for i in range(6)], steps)
    joined = Waits.concatenate([waits.take([4, 1]), waits.take([]), waits.take([2])])
    assert joined.by_cause.sum(axis=1).tolist() == [4, 1, 2]
    assert len(Waits.concatenate([]).after_preemption) == 0


@pytest.mark.parametrize("seed", range(2))
def test_ten_thousand_requests_over_fifty_thousand_steps_lose_no_nanosecond(seed: int) -> None:
    rng = np.random.default_rng(seed)
    starts = np.cumsum(rng.integers(1, 20_000_000, 50_000)).tolist()
    rows = [(t, CAUSES[i], f"req-{who}" if CAUSES[i] == "blocks" else None) for t, i, who in zip(
        starts, rng.integers(0, len(CAUSES), 50_000).tolist(), rng.integers(0, 10_000, 50_000).tolist(), strict=True
    )]  # fmt: skip
    sched = rng.integers(0, starts[-1], 10_000).tolist()
    waited = rng.integers(0, 10**10, 10_000).tolist()
    requests = [
        request_of(t, t + wait, None, request_id=f"req-{i}")
        for i, (t, wait) in enumerate(zip(sched, waited, strict=True))
    ]
    assert wait_times(requests, steps_of(*rows)).by_cause.sum(axis=1).tolist() == waited
