"""Diagnosis of traces whose answer is known."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pandas as pd
import pytest

from engine.request import RequestEvent
from engine.trace import IterationRecord
from reports.diagnosis import findings, indicators
from reports.format import DASH
from reports.run_statistics import MANY, first_token_statistics, overtaken, step_statistics
from reports.view import Finding
from workloads.records import RequestRecord

SETTINGS = {"max_num_seqs": 8, "max_num_batched_tokens": 100}
MS = 1_000_000


def trace(*groups: tuple[int, dict[str, Any]]) -> pd.DataFrame:
    """`(how many, fields)` steps of 10 ms each, one after the other."""
    rows: list[dict[str, Any]] = []
    for times, fields in groups:
        for _ in range(times):
            start = len(rows) * 10 * MS
            base = asdict(
                IterationRecord(
                    iteration=len(rows),
                    t_start=start,
                    t_end=start + 10 * MS,
                    prefill_tokens=0,
                    decode_tokens=4,
                    prefill_seqs=0,
                    decode_seqs=4,
                    context_tokens=0,
                    attended_tokens=0,
                    cached_tokens=0,
                    running=4,
                    waiting=0,
                    kv_blocks_used=10,
                    kv_blocks_total=100,
                    preemptions_recompute=0,
                    preemptions_swap=0,
                    swapped_in_blocks=0,
                    swapped_out_blocks=0,
                    swapped_in_bytes=0,
                    swapped_out_bytes=0,
                    recomputed_tokens=0,
                    schedule_time_ns=MS,
                    execute_time_ns=9 * MS,
                    device_time_ns=None,
                    gap_ns=0,
                )
            )
            rows.append(base | fields)
    return pd.DataFrame(rows)


def diagnose(frame: pd.DataFrame, idle: float | None = 0.1, window: dict[str, Any] | None = None) -> list[str]:
    meta = {"settings": SETTINGS, "summary": {"device_idle_share": idle}, "classes": {}}
    return said(findings(step_statistics(frame, window, SETTINGS), None, (), meta))


def said(found: Sequence[Finding]) -> list[str]:
    return [f"{finding.title}. {finding.text}" for finding in found]


AT_SEATS = {"running": 8, "decode_tokens": 8, "waiting": 3, "wait_cause": "seats"}
AT_BUDGET = {"prefill_tokens": 96, "waiting": 2, "wait_cause": "budget"}
AT_KV = {"kv_blocks_used": 97, "waiting": 5, "wait_cause": "blocks"}
IN_BATCH = {"waiting": 1, "wait_cause": "batch"}


@pytest.mark.parametrize(
    ("fields", "title", "number"),
    [
        (AT_SEATS, "Bound by seats", "in 60.0% all 8 seats were taken"),
        (AT_BUDGET, "Bound by the token budget", "in 60.0% the budget of 100 tokens was used up"),
        (AT_KV, "Bound by KV blocks", "in 60.0% there was no room"),
        (IN_BATCH, "Bound by the batching mode", "in 60.0% the batch was closed or still growing"),
    ],
)
def test_what_the_scheduler_says_kept_requests_waiting_is_the_bound(fields, title, number):
    bound = diagnose(trace((60, fields), (40, {})))[0]
    assert bound.startswith(title + ".")
    assert "left waiting in 60.0% of the steps" in bound
    assert number in bound


def test_two_causes_that_weigh_alike_are_both_named():
    assert diagnose(trace((50, AT_SEATS), (45, AT_BUDGET)))[0].startswith("Bound by seats and the token budget.")


def test_the_scheduler_s_word_counts_whatever_seats_and_budget_look_like():
    assert diagnose(trace((50, AT_SEATS | {"wait_cause": "blocks"}), (50, {})))[0].startswith("Bound by KV blocks.")


@pytest.mark.parametrize(
    ("fields", "batch_ms", "blocks_ms", "bound"),
    [
        ({}, 500.0, 0.0, "Bound by the batching mode. A request waited 500 ms in the mean"),
        (AT_KV, 500.0, 20.0, "Bound by the batching mode. A request waited 500 ms in the mean"),
        (AT_KV, 500.0, 900.0, "Bound by KV blocks."),
        ({}, 9.0, 0.0, "Bound by compute."),
    ],
)
def test_waits_for_a_growing_batch_bind_though_no_step_left_anyone_waiting(fields, batch_ms, blocks_ms, bound):
    summary = {"device_idle_share": 0.1, "mean_wait_batch_ms": batch_ms, "mean_wait_blocks_ms": blocks_ms}
    steps = step_statistics(trace((50, fields), (50, {})), None, SETTINGS)
    found = findings(steps, None, (), {"settings": SETTINGS, "summary": summary, "classes": {}})
    assert said(found)[0].startswith(bound)


def test_full_seats_without_anyone_waiting_bind_nothing():
    frame = trace((100, AT_SEATS | {"waiting": 0, "wait_cause": None}))
    statistics = step_statistics(frame, None, SETTINGS)
    assert statistics is not None
    assert statistics.at_seat_limit == 1
    assert diagnose(frame)[0].startswith("Bound by compute.")


def test_an_idle_device_and_an_empty_queue_mean_too_little_load():
    assert diagnose(trace((100, {})), idle=0.55)[0] == (
        "Bound by the load offered. Requests were left waiting in only 0.0% of the steps, and the device was idle "
        "55.0% of the time."
    )


def test_without_the_idle_share_no_cause_is_claimed():
    assert diagnose(trace((10, {})), idle=None)[0].startswith("Not bound by the scheduler.")


def test_preemptions_are_counted_with_the_share_of_work_done_twice():
    frame = trace((1, {"preemptions_recompute": 2, "preemptions_swap": 1}), (1, {"recomputed_tokens": 1}), (2, {}))
    text = next(line for line in diagnose(frame) if line.startswith("Preemptions"))
    assert "3 preemptions in the 4 steps of the window: 2 by recompute, 1 by swap" in text
    assert "6.2% of the computed tokens" in text


def test_the_waits_that_preemptions_caused_are_said_with_their_victims_by_class():
    meta = {
        "settings": SETTINGS,
        "summary": {"preempted_wait_s": 2.5},
        "classes": {"interactive": {"preemptions": 0}, "batch": {"preemptions": 4}},
    }
    steps = step_statistics(trace((1, {"preemptions_recompute": 4})), None, SETTINGS)
    text = next(line for line in said(findings(steps, None, (), meta)) if line.startswith("Preemptions"))
    assert "were preempted 4 times (interactive 0, batch 4) and waited 2.50 s in all to run again" in text


def test_requests_turned_away_are_counted_with_their_classes_and_the_limits():
    meta = {
        "settings": SETTINGS | {"max_queue_len": 5, "queue_timeout": 0.2, "max_predicted_wait": 0.0},
        "summary": {"num_shed": 3, "num_queue_timeouts": 1, "completed": 36, "failed": 4},
        "classes": {
            "chat": {"num_shed": 3, "num_queue_timeouts": 0},
            "batch": {"num_shed": 0, "num_queue_timeouts": 1},
        },
    }
    found = findings(step_statistics(trace((5, {})), None, SETTINGS), None, (), meta)
    (text,) = (line for line in said(found) if line.startswith("Turned away"))
    assert "4 of 40 requests (10.0%): 3 on arrival, 1 after waiting too long (chat 3, batch 1)" in text
    assert text.endswith("The limits: max_queue_len=5, queue_timeout=0.2s.")


def test_tries_turned_away_are_said_though_every_request_was_served_in_the_end():
    meta = {
        "settings": SETTINGS | {"max_queue_len": 5},
        "summary": {"num_shed": 0, "num_queue_timeouts": 0, "num_turned_away": 70, "num_retries": 70, "completed": 40},
        "classes": {},
    }
    found = findings(step_statistics(trace((5, {})), None, SETTINGS), None, (), meta)
    (text,) = (line for line in said(found) if line.startswith("Turned away"))
    assert "0 of 40 requests" in text
    assert "70 tries were turned away, and clients sent 70 times again" in text


def test_only_steps_of_the_window_count():
    frame = trace((10, AT_SEATS), (10, {}))
    statistics = step_statistics(frame, {"start_ns": 100 * MS, "end_ns": 150 * MS}, SETTINGS)
    assert statistics is not None
    assert (statistics.steps, statistics.at_seat_limit) == (5, 0)
    assert step_statistics(frame, {"start_ns": 900 * MS, "end_ns": 950 * MS}, SETTINGS) is None


def test_a_window_without_steps_is_said_and_gives_dashes():
    assert diagnose(trace((10, {})), window={"start_ns": 900 * MS, "end_ns": 950 * MS})[0].startswith("No steps.")
    assert {value for _, value in indicators(None, None)} == {DASH}


def test_steps_with_prefill_are_told_from_steps_that_only_decode():
    text = next(
        line
        for line in diagnose(trace((5, {"prefill_tokens": 50}), (5, {})))
        if line.startswith("Prefill beside decode")
    )
    assert "takes 10.0 ms (median), a step that only decodes 10.0 ms" in text


def request(queue_ms: int, prefill_ms: int, phase: str = "window", **fields: Any) -> RequestRecord:
    first = (queue_ms + prefill_ms) * MS
    record = RequestRecord(
        index=0,
        request_id="r",
        phase=phase,  # type: ignore[arg-type]
        status="ok",
        finish_reason="length",
        error=None,
        t_sched=0,
        t_send=0,
        t_admit=queue_ms * MS,
        t_first=first,
        t_last=first,
        t_end=first,
        prompt_tokens=1,
        max_tokens=1,
        output_tokens=1,
        first_chunk_tokens=1,
        cached_tokens=0,
        preemptions=0,
        recomputed_tokens=0,
    )
    return replace(record, **fields)


def test_time_to_first_token_is_split_into_queue_and_prefill():
    statistics = first_token_statistics([request(0, 100)] * 19 + [request(900, 100), request(5000, 1, "warmup")])
    assert statistics is not None
    assert (statistics.requests, statistics.queue_ms, statistics.prefill_ms) == (20, 45, 100)
    assert statistics.queue_share == pytest.approx(45 / 145)
    # The 95th percentile lies between the two values, so the slowest 5 % are the one that queued.
    assert statistics.slowest_queue_share == pytest.approx(0.9)


def test_requests_that_never_got_a_token_leave_nothing_to_split():
    assert first_token_statistics([]) is None


def queued(seconds: int, admitted: int | None, **fields: Any) -> RequestRecord:
    """Arrives at one time, is admitted at another (seconds)."""
    times = {"t_sched": seconds * 1000 * MS, "t_send": seconds * 1000 * MS}
    return request(0, 10, **times | {"t_admit": None if admitted is None else admitted * 1000 * MS} | fields)


def later_ones(number: int) -> list[RequestRecord]:
    return [queued(1 + i, 2 + i, class_name="chat", phase="cooldown") for i in range(number)]


def overtaken_said(requests: list[RequestRecord], **settings: Any) -> list[str]:
    meta = {"settings": SETTINGS | {"policy": "fcfs", "aging": 0.0} | settings, "summary": {}, "classes": {}}
    found = findings(step_statistics(trace((5, {})), None, SETTINGS), None, overtaken(requests), meta)
    return [line for line in said(found) if line.startswith("Requests were overtaken")]


OUT_OF_ORDER: list[dict[str, Any]] = [
    {"policy": "sjf"},
    {"policy": "priority"},
    {"policy": "tiered"},
    {"short_first_tokens": 64},
    {"retried_first": True},
]


@pytest.mark.parametrize("settings", OUT_OF_ORDER)
def test_without_aging_whom_many_later_arrivals_overtook_is_named_by_class_with_the_worst(settings):
    slow = queued(0, 40, class_name="batch")
    never = queued(0, None, class_name="batch", t_end=15 * 1000 * MS, status="timeout")
    (text,) = overtaken_said([slow, never, *later_ones(30)], **settings)
    assert f"2 requests stood in the queue while {MANY} or more later ones were admitted" in text
    assert "2 of class batch, the worst overtaken by 30 in 40.0 s" in text
    assert f"{next(iter(settings))}=" in text


@pytest.mark.parametrize("settings", [{}, *({**rule, "aging": 5.0} for rule in OUT_OF_ORDER)])
def test_nobody_can_be_overtaken_without_limit_in_order_of_arrival_or_with_aging(settings):
    assert not overtaken_said([queued(0, 40), *later_ones(30)], **settings)


@pytest.mark.parametrize("overtakers", [0, MANY - 1])
def test_a_long_wait_that_few_overtook_is_not_named_whatever_its_length(overtakers):
    assert not overtaken_said([queued(0, 900), *later_ones(overtakers)], policy="sjf")


def test_who_arrived_earlier_does_not_overtake_nor_is_one_overtaken_who_was_turned_away_at_once():
    earlier = [replace(one, t_sched=0) for one in later_ones(30)]
    shed = queued(1, None, t_end=40 * 1000 * MS, status="shed")
    assert overtaken([queued(1, 40), shed, *earlier]) == ()


def test_nobody_is_overtaken_while_its_client_pauses_before_it_sends_again():
    back = RequestEvent(38 * 1000 * MS, "queued", 1)
    turned_away = [RequestEvent(0, "queued", 1), RequestEvent(1000 * MS, "turned_away", 0), back]
    assert overtaken([queued(0, 40, history=tuple(turned_away)), *later_ones(30)]) == ()
