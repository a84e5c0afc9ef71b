"""The data behind the charts."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from reports.charts import MAX_CURVE_POINTS, importance_chart, latency_charts, trial_chart
from reports.trace_chart import MAX_POINTS, over_replicas, trace_chart
from workloads.records import RequestRecord


def steps(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.RandomState(seed)
    return pd.DataFrame(
        {
            "t_start": np.arange(n) * 10_000_000 + 7,
            "t_end": np.arange(1, n + 1) * 10_000_000 + 7,
            "prefill_tokens": rng.randint(0, 500, n) * (rng.rand(n) < 0.3),
            "decode_tokens": rng.randint(0, 64, n),
            "kv_blocks_used": rng.randint(0, 100, n),
            "kv_blocks_total": 100,
            "running": rng.randint(0, 64, n),
            "waiting": rng.randint(0, 9, n),
            "preemptions_recompute": (rng.rand(n) < 0.05).astype(int),
            "preemptions_swap": 0,
            "swapped_out_bytes": rng.randint(0, 9 << 20, n),
            "swapped_in_bytes": 0,
        }
    )


def request(ttft_ms: float | None, status: str = "ok", phase: str = "window", tokens: int = 11) -> RequestRecord:
    first = None if ttft_ms is None else int(ttft_ms * 1e6)
    last = None if first is None else first + 100_000_000 * (tokens > 1)
    return RequestRecord(
        index=0,
        request_id="r",
        phase=phase,  # type: ignore[arg-type]
        status=status,  # type: ignore[arg-type]
        finish_reason=None,
        error=None,
        t_sched=0,
        t_send=0,
        t_admit=0,
        t_first=first,
        t_last=last,
        t_end=last,
        prompt_tokens=1,
        max_tokens=tokens,
        output_tokens=tokens,
        first_chunk_tokens=1,
        cached_tokens=0,
        preemptions=0,
        recomputed_tokens=0,
    )


@pytest.mark.parametrize("n", [1, 59, MAX_POINTS, MAX_POINTS + 1, 4321])
def test_bins_of_steps_keep_totals_and_bounds(n):
    frame = steps(n, seed=n)
    chart = trace_chart("run", frame, None)
    assert chart is not None
    sizes = np.diff(np.append(np.arange(0, n, chart.steps_per_point), n))
    assert len(chart.t_s) <= MAX_POINTS
    assert (chart.prefill_tokens * sizes).sum() == pytest.approx(frame["prefill_tokens"].sum())
    assert (chart.decode_tokens * sizes).sum() == pytest.approx(frame["decode_tokens"].sum())
    assert chart.recompute_preemptions[-1] == frame["preemptions_recompute"].sum()
    assert chart.kv_max_percent.max() == pytest.approx(frame["kv_blocks_used"].max())
    assert (chart.kv_mean_percent <= chart.kv_max_percent + 1e-9).all()


def test_the_ratio_is_that_of_sums_and_has_a_hole_where_nothing_was_decoded():
    frame = steps(120, seed=3).assign(prefill_tokens=10, decode_tokens=[0, 0] + [5] * 118)
    chart = trace_chart("run", frame, None)
    assert chart is not None
    assert chart.steps_per_ratio_point == 2
    assert np.isnan(chart.ratio[0])
    assert (chart.ratio[1:] == 2).all()


def test_a_run_without_steps_has_no_trace_chart():
    assert trace_chart("run", steps(0, seed=0), {"start_ns": 0, "end_ns": 1}) is None


def test_misses_keep_a_latency_curve_below_one_hundred_percent():
    requests = [request(100), request(300), request(None, "timeout"), request(50, "failed"), request(1, phase="warmup")]
    ttft, tpot, _ = latency_charts([("run", requests)], [])
    assert ttft.curves[0].latency_ms.tolist() == [100, 300]
    assert ttft.curves[0].share.tolist() == [0.25, 0.5]
    assert tpot.curves[0].latency_ms.tolist() == [10, 10]


def test_answers_of_one_token_are_neither_hit_nor_miss_for_tpot():
    charts = latency_charts([("run", [request(100), request(100, tokens=1)])], [])
    assert {chart.metric: chart.curves[0].share.tolist() for chart in charts}["TPOT"] == [1.0]
    only_single = latency_charts([("run", [request(100, tokens=1)])], [])
    assert [chart.metric for chart in only_single] == ["TTFT", "E2E"]


def test_long_latency_curves_are_thinned_and_keep_both_ends():
    (ttft, *_) = latency_charts([("run", [request(float(i)) for i in range(1, 3001)])], [])
    (curve,) = ttft.curves
    assert len(curve.share) <= MAX_CURVE_POINTS
    assert (curve.latency_ms[0], curve.latency_ms[-1], curve.share[-1]) == (1, 3000, 1)


def test_bounds_are_marked_in_the_chart_of_their_metric():
    bound = {"text": "p95_ttft<=1s", "metric": "ttft", "bound_ms": 1000.0, "required_share": 0.95}
    ttft, tpot, e2e = latency_charts([("run", [request(100)])], [bound])
    assert [len(chart.bounds) for chart in (ttft, tpot, e2e)] == [1, 0, 0]


def test_the_best_so_far_counts_only_trials_that_met_the_slo():
    trials: list[dict[str, Any]] = [
        {"number": n, "state": state, "settings": {}, "goodput": goodput}
        for n, state, goodput in [
            (0, "complete", 2.0),
            (1, "infeasible", 9.0),
            (2, "failed", None),
            (3, "complete", 1.0),
        ]
    ]
    chart = trial_chart(trials)
    assert chart is not None
    assert [point.number for point in chart.points] == [0, 1, 3]
    assert chart.best_so_far == ((0, 2.0), (3, 2.0))
    assert trial_chart([trials[2]]) is None


def test_importance_is_sorted_and_absent_when_unknown():
    chart = importance_chart({"a": 0.2, "b": 0.8})
    assert chart is not None
    assert chart.parameters == ("b", "a")
    assert importance_chart({}) is None


def test_what_replicas_have_is_added_up_while_it_holds():
    ms = 1e6
    column = {
        "replica": np.array([0.0, 1.0, 0.0, 1.0, 0.0]),
        "t_start": np.array([0.0, 5.0, 10.0, 60.0, 100.0]) * ms,
        # Replica 1 rests from 20 to 60, replica 0 from 50 to 100; from 10 to 10 lies only the end of a step.
        "t_end": np.array([10.0, 20.0, 50.0, 120.0, 110.0]) * ms,
        "running": np.array([1.0, 10.0, 2.0, 20.0, 3.0]),
    }
    assert over_replicas(column, "running").tolist() == [1, 11, 12, 20, 23]
    assert over_replicas({"running": column["running"]}, "running").tolist() == [1, 10, 2, 20, 3]
