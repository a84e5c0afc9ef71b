"""Metrics and summary on streams small enough to work out by hand."""

import numpy as np
import pytest

from engine.trace import IterationRecord
from workloads.metrics import SAMPLES, Window, e2e_ns, itl_ns, queue_ns, summarize, tpot_ns, ttft_ns
from workloads.slo import parse_slo

MS = 1_000_000
S = 1_000_000_000


def test_chunks_of_several_tokens_give_latencies_per_token(make_record):
    chunks = [(1 * S, 1)] + [(1 * S + i * 200 * MS, 4) for i in range(1, 6)]
    record = make_record(chunks, t_end=2120 * MS)
    assert ttft_ns(record) == 1 * S
    assert tpot_ns(record) == 50 * MS
    assert itl_ns(record) == (50 * MS,) * 5
    assert e2e_ns(record) == 2120 * MS


def test_tokens_of_the_first_chunk_cost_no_output_time(make_record):
    assert tpot_ns(make_record([(100 * MS, 3), (300 * MS, 2)])) == 100 * MS


def test_one_token_has_no_tpot_and_no_itl(make_record):
    record = make_record([(100 * MS, 1)])
    assert tpot_ns(record) is None
    assert itl_ns(record) == ()


def test_no_token_has_no_ttft_and_is_a_miss(make_record):
    record = make_record([])
    assert ttft_ns(record) is None
    assert SAMPLES["ttft"](record).missing == 1


@pytest.mark.parametrize("status", ["shed", "queue_timeout"])
@pytest.mark.parametrize("metric", SAMPLES)
def test_a_request_that_was_turned_away_is_a_miss_in_every_metric(make_record, metric, status):
    sample = SAMPLES[metric](make_record([], status=status, t_admit=None, max_tokens=5))
    assert sample.values == ()
    assert sample.missing >= 1


def test_latencies_count_from_the_schedule_and_not_from_the_send(make_record):
    record = make_record(t_sched=10 * MS, t_send=90 * MS, t_admit=95 * MS)
    assert (ttft_ns(record), e2e_ns(record), queue_ns(record)) == (90 * MS, 190 * MS, 85 * MS)


def step(t_start, t_end, **changes):
    fields = {
        "iteration": 0,
        "prefill_tokens": 0,
        "decode_tokens": 0,
        "prefill_seqs": 0,
        "decode_seqs": 0,
        "context_tokens": 0,
        "attended_tokens": 0,
        "cached_tokens": 0,
        "running": 0,
        "waiting": 0,
        "kv_blocks_used": 0,
        "kv_blocks_total": 100,
        "preemptions_recompute": 0,
        "preemptions_swap": 0,
        "swapped_in_blocks": 0,
        "swapped_out_blocks": 0,
        "swapped_in_bytes": 0,
        "swapped_out_bytes": 0,
        "recomputed_tokens": 0,
        "schedule_time_ns": 0,
        "execute_time_ns": t_end - t_start,
        "device_time_ns": None,
        "gap_ns": 0,
    }
    return IterationRecord(t_start=t_start, t_end=t_end, **(fields | changes))


def test_rates_are_those_of_the_requests_scheduled_in_the_window(make_record):
    records = [
        make_record(index=0, phase="warmup"),
        make_record(index=1, t_sched=1 * S, chunks=[(9 * S, 1), (9 * S + 100 * MS, 3)]),
        make_record(index=2, t_sched=1 * S, chunks=[(1 * S + 50 * MS, 1), (1 * S + 70 * MS, 1)]),
        make_record(index=3, status="timeout"),
        make_record(index=4, status="unfinished"),
        make_record(index=5, phase="cooldown"),
        make_record([], index=6, status="shed"),
        *(make_record([], index=i, status="queue_timeout") for i in (7, 8)),
    ]
    summary = summarize(records, [], Window(1 * S, 5 * S), parse_slo(["p95_ttft=1s"]))
    assert summary["duration"] == 4.0
    assert (summary["completed"], summary["failed"]) == (2, 5)
    assert (summary["num_timeouts"], summary["num_unfinished"]) == (1, 1)
    assert (summary["num_shed"], summary["num_queue_timeouts"]) == (1, 2)
    assert (summary["total_input_tokens"], summary["total_output_tokens"]) == (20, 6)
    assert (summary["request_throughput"], summary["output_throughput"]) == (0.5, 1.5)
    assert summary["total_token_throughput"] == 6.5
    assert (summary["good_requests"], summary["request_goodput"], summary["output_token_goodput"]) == (1, 0.25, 0.5)


def test_percentiles_interpolate_as_numpy_does(make_record):
    ttfts = [10, 20, 40, 80, 160]
    records = [make_record([(t * MS, 1)], index=i) for i, t in enumerate(ttfts)]
    summary = summarize(records, [], Window(0, S))
    for q in (50, 90, 95, 99):
        assert summary[f"p{q}_ttft_ms"] == pytest.approx(np.percentile(ttfts, q))
    assert (summary["mean_ttft_ms"], summary["median_ttft_ms"], summary["max_ttft_ms"]) == (62, 40, 160)
    assert summary["std_ttft_ms"] == pytest.approx(np.std(ttfts))
    assert summary["mean_e2el_ms"] == 62


def test_what_was_not_measured_is_null(make_record):
    summary = summarize([make_record([(100 * MS, 1)])], [], Window(0, S))
    assert summary["mean_tpot_ms"] is None
    assert summary["p99_itl_ms"] is None
    assert summary["request_goodput"] is None
    assert summary["good_requests"] is None
    assert summary["prefill_decode_ratio"] is None
    assert summary["max_kv_utilization"] is None
    assert summary["recomputed_share"] is None
    assert summarize([], [], Window(0, 0))["request_throughput"] is None


def test_engine_figures_average_over_the_time_of_the_window():
    steps = [
        step(0, 1 * S, running=99, prefill_tokens=999),
        step(
            1 * S, 2 * S, running=4, waiting=2, kv_blocks_used=50, prefill_tokens=30, decode_tokens=10, cached_tokens=5
        ),
        step(
            3 * S,
            5 * S,
            running=2,
            kv_blocks_used=25,
            preemptions_recompute=1,
            preemptions_swap=2,
            recomputed_tokens=7,
            swapped_in_blocks=3,
            swapped_out_blocks=4,
            swapped_in_bytes=300,
            swapped_out_bytes=400,
        ),
        step(5 * S, 6 * S, running=99),
    ]
    summary = summarize([], steps, Window(1 * S, 5 * S))
    assert summary["iterations"] == 2
    assert summary["mean_running"] == 2.0
    assert summary["mean_waiting"] == 0.5
    assert summary["mean_kv_utilization"] == 0.25
    assert summary["max_kv_utilization"] == 0.5
    assert (summary["prefill_tokens"], summary["decode_tokens"], summary["prefill_decode_ratio"]) == (30, 10, 3.0)
    assert (summary["preemptions"], summary["recomputed_tokens"], summary["cached_tokens"]) == (3, 7, 5)
    assert (summary["preemptions_recompute"], summary["preemptions_swap"]) == (1, 2)
    assert (summary["swapped_in_blocks"], summary["swapped_out_blocks"]) == (3, 4)
    assert (summary["swapped_in_bytes"], summary["swapped_out_bytes"]) == (300, 400)
    assert summary["recomputed_share"] == 7 / 40
    assert summary["device_idle_share"] == 0.25


def test_the_devices_own_time_decides_its_idle_share():
    summary = summarize([], [step(0, S, device_time_ns=S // 4)], Window(0, S))
    assert summary["device_idle_share"] == 0.75
