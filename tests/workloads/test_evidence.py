"""A run that may end because the evidence is in."""

from itertools import islice

import pytest

from workloads.driver import drive
from workloads.plan import make_plan
from workloads.slo import parse_slo
from workloads.spec import load_spec
from workloads.validity import check_validity


def plan_of(*overrides, rate=20.0, seed=3, window_s=30.0):
    spec = load_spec("chat-small", ["output_tokens=5", *overrides])
    return make_plan(spec, rate=rate, seed=seed, vocab_size=32_000, warmup_s=2.0, window_s=window_s)


@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_holds_beyond_doubt_ends_after_half_of_its_window(make_engine, seed):
    slo = parse_slo("p95_ttft=100ms,p90_e2e=500ms")
    plan = plan_of(seed=seed)
    result = drive(make_engine(seats=64), plan, slo=slo, stop_when_held=True)
    window = [r for r in result.requests if r.phase == "window"]
    assert result.stopped_early == "held beyond doubt"
    assert 15.0 <= result.window.duration_s < 30.0
    assert {r.status for r in window} == {"ok"}
    assert all(result.window.start_ns <= r.t_sched < result.window.end_ns for r in window)
    assert slo.judge(result.requests).meets
    assert check_validity(result, plan)["valid"]


def test_the_requests_of_a_window_that_ended_early_go_to_their_end_under_load(make_engine):
    plan, slo = plan_of("output_tokens=40"), parse_slo("p90_ttft=100ms")
    result = drive(make_engine(seats=64), plan, slo=slo, stop_when_held=True)
    window = [r for r in result.requests if r.phase == "window"]
    cooldown = [r for r in result.requests if r.phase == "cooldown"]
    assert result.stopped_early == "held beyond doubt"
    assert max(r.t_end or 0 for r in window) > result.window.end_ns
    assert cooldown
    assert min(r.t_sched for r in cooldown) >= result.window.end_ns


def test_without_being_asked_a_run_that_holds_goes_to_its_end(make_engine):
    result = drive(make_engine(seats=64), plan_of(), slo=parse_slo("p95_ttft=100ms"))
    assert result.stopped_early is None
    assert result.window.duration_s == 30.0


@pytest.mark.parametrize("slo", ["p95_ttft=100ms,max_e2e=10s", "mean_ttft=1s"])
def test_a_maximum_or_a_mean_is_never_held_beyond_doubt(make_engine, slo):
    result = drive(make_engine(seats=64), plan_of(), slo=parse_slo(slo), stop_when_held=True)
    assert result.stopped_early is None


@pytest.mark.parametrize("seed", range(3))
def test_a_queue_that_builds_up_holds_nothing_beyond_doubt(make_engine, seed):
    # Six seats of five steps of 60 ms each serve 20 requests/s; 21 are offered.
    engine = make_engine(seats=6, step_ms=60)
    result = drive(engine, plan_of(rate=21.0, seed=seed), slo=parse_slo("p95_ttft=3s"), stop_when_held=True)
    assert result.stopped_early != "held beyond doubt"


def test_a_window_too_short_for_its_warm_up_is_not_cut_further(make_engine):
    # Requests are served for 4 s, after a warm-up of 2 s: half of the window would hold too much of the empty start.
    plan = plan_of("output_tokens=400", rate=20.0)
    slo = parse_slo("p90_ttft=100ms")
    result = drive(make_engine(seats=256, blocks=20_000), plan, slo=slo, stop_when_held=True)
    assert check_validity(result, plan)["valid"]


@pytest.mark.parametrize("seed", range(2))
def test_evidence_of_misses_ends_a_run_before_arithmetic_would(make_engine, seed):
    plan = make_plan(load_spec("chat-small", []), rate=20.0, seed=seed, vocab_size=32_000, warmup_s=5.0, window_s=40.0)
    lengths = sorted(p.max_tokens for p in islice(plan, 900) if p.phase == "window")
    # Every eighth answer has more tokens than come within the bound, where every twentieth may.
    slo = parse_slo(f"p95_e2e={10 * lengths[len(lengths) * 7 // 8] + 15}ms")
    result = drive(make_engine(seats=256, blocks=50_000), plan, slo=slo)
    window = [r for r in result.requests if r.phase == "window"]
    missed = [r for r in window if r.status == "ok" and not r.good]
    assert result.stopped_early == "verdict settled"
    assert len(missed) < 0.05 * (plan.num_window_requests or 0)
    assert not slo.judge(result.requests).meets
