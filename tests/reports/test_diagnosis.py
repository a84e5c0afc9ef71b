"""Diagnosis of traces whose answer is known."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pandas as pd
import pytest

from engine.trace import IterationRecord
from reports.diagnosis import findings, indicators
from reports.format import DASH
from reports.run_statistics import first_token_statistics, starvation, step_statistics
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
    return said(findings(step_statistics(frame, window, SETTINGS), None, None, meta))


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
    assert "3 preemptions in 4 steps: 2 by recompute, 1 by swap" in text
    assert "6.2% of the computed tokens" in text


def test_the_waits_that_preemptions_caused_are_said_with_their_victims_by_class():
    meta = {
        "settings": SETTINGS,
        "summary": {"preempted_wait_s": 2.5},
        "classes": {"interactive": {"preemptions": 0}, "batch": {"preemptions": 4}},
    }
    steps = step_statistics(trace((1, {"preemptions_recompute": 4})), None, SETTINGS)
    text = next(line for line in said(findings(steps, None, None, meta)) if line.startswith("Preemptions"))
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
    found = findings(step_statistics(trace((5, {})), None, SETTINGS), None, None, meta)
    (text,) = (line for line in said(found) if line.startswith("Turned away"))
    assert "4 of 40 requests (10.0%): 3 on arrival, 1 after waiting too long (chat 3, batch 1)" in text
    assert text.endswith("The limits: max_queue_len=5, queue_timeout=0.2s.")


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


@pytest.mark.parametrize(("policy", "aging"), [("fcfs", 0.0), ("sjf", 5.0), ("priority", 1.0)])
def test_long_waits_under_a_fair_policy_are_no_starvation(policy, aging):
    assert not starvation_said(policy, aging)


@pytest.mark.parametrize("policy", ["sjf", "priority", "tiered"])
def test_without_aging_requests_that_waited_over_ten_times_the_median_starved(policy):
    (text,) = starvation_said(policy, 0.0)
    assert "2 requests (2 of class batch) waited more than 10 times the median of 100 ms" in text
    assert "the longest 9.00 s (class batch)" in text
    assert f"policy={policy}" in text


def starvation_said(policy: str, aging: float) -> list[str]:
    admitted = request(9000, 10, class_name="batch")
    never = request(0, 10, class_name="batch", t_admit=None, t_end=5000 * MS, status="timeout")
    shed = request(0, 10, class_name="chat", t_admit=None, t_end=0, status="shed")
    starved = starvation([request(100, 10, class_name="chat")] * 9 + [admitted, never, shed], step_ms=10)
    meta = {"settings": SETTINGS | {"policy": policy, "aging": aging}, "summary": {}, "classes": {}}
    found = findings(step_statistics(trace((5, {})), None, SETTINGS), None, starved, meta)
    return [line for line in said(found) if line.startswith("Requests starved")]


def test_waits_of_a_few_steps_are_no_starvation_however_short_the_median():
    assert starvation([request(0, 10)] * 9 + [request(50, 10)], step_ms=10) is None
