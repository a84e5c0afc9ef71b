"""A run stops early only when more of it would change nothing."""

import pytest

from workloads.driver import drive
from workloads.early_stop import BacklogWatch
from workloads.metrics import Window
from workloads.plan import make_plan
from workloads.slo import parse_slo
from workloads.spec import load_spec

S = 1_000_000_000


def plan_of(*overrides, rate=5.0, seed=3, window_s=15.0):
    spec = load_spec("chat-small", ["output_tokens=20", *overrides])
    return make_plan(spec, rate=rate, seed=seed, vocab_size=32_000, warmup_s=2.0, window_s=window_s)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("slo", ["p95_ttft=100ms", "p95_e2e=300ms", "max_ttft=50ms", "mean_e2e=1ms,p90_tpot=5ms"])
def test_a_settled_run_stops_and_its_verdict_is_that_of_the_whole_run(make_engine, seed, slo):
    objective = parse_slo(slo)
    # Two seats of 5 requests/s each, offered 20 requests/s: every request is late in the end.
    plan = plan_of(rate=20.0, seed=seed)
    stopped = drive(make_engine(seats=2), plan, slo=objective)
    whole = drive(make_engine(seats=2), plan, slo=objective, stop_when_settled=False, drain_timeout_s=1.0)
    assert (stopped.stopped_early, whole.stopped_early) == ("verdict settled", None)
    assert stopped.window.end_ns < whole.window.end_ns
    assert stopped.window.end_ns == stopped.iterations[-1].t_end
    assert objective.judge(stopped.requests).state == objective.judge(whole.requests).state == "infeasible"
    assert {r.status for r in stopped.requests} == {"ok", "unfinished"}


@pytest.mark.parametrize("seed", range(3))
def test_a_run_within_its_slo_goes_to_its_end(make_engine, seed):
    plan = plan_of(seed=seed)
    result = drive(make_engine(), plan, slo=parse_slo("p95_ttft=100ms,p99_itl=11ms,max_e2e=2s"))
    assert result.stopped_early is None
    assert result.window.duration_s == 15.0


def test_requests_overdue_in_the_queue_settle_a_run_before_any_of_them_ends(make_engine):
    engine = make_engine(seats=1, step_ms=100)
    result = drive(engine, plan_of("output_tokens=400"), slo=parse_slo("p95_ttft=1s"))
    assert result.stopped_early == "verdict settled"
    assert result.window.duration_s < 10


def test_a_first_token_that_came_in_time_is_no_miss_because_the_run_stopped(make_engine):
    slo = parse_slo("p95_ttft=1s")
    result = drive(make_engine(seats=32, step_ms=50), plan_of("output_tokens=100", rate=10.0), slo=slo)
    requests = [r for r in result.requests if r.phase == "window"]
    in_time = [r for r in requests if r.t_first is not None and r.t_first - r.t_sched <= S]
    verdict = slo.judge(result.requests)
    assert result.stopped_early == "verdict settled"
    assert any(r.status == "unfinished" for r in in_time)
    assert not verdict.meets
    assert verdict.bounds[0].met_share == len(in_time) / len(requests)


def test_a_backlog_that_grows_without_bound_stops_a_run_that_no_request_has_missed(make_engine):
    engine = make_engine(seats=2)
    result = drive(engine, plan_of(rate=50.0), slo=parse_slo("p95_e2e=20m"))
    assert result.stopped_early == "backlog grows without bound"
    assert result.window.duration_s <= 7.5


def test_without_an_slo_an_overloaded_run_goes_to_its_end(make_engine):
    result = drive(make_engine(seats=2), plan_of(rate=50.0, window_s=10.0), drain_timeout_s=1.0)
    assert result.stopped_early is None


def looks(numbers, waiting=9, running=4, arrivals_between=100):
    watch = BacklogWatch(Window(0, 8 * S))
    return [
        watch.grows(i * S, n, sent=i * arrivals_between, waiting=waiting, running=running)
        for i, n in enumerate(numbers)
    ]


def test_the_backlog_is_judged_by_its_last_three_rises():
    assert looks([0, 60, 120, 180]) == [False, False, False, True]
    assert not any(looks([0, 45, 90, 135, 180, 225, 270, 315, 360]))
    assert not any(looks([0, 90, 180, 170, 240, 330, 320, 400, 390]))
    assert not any(looks([0, 60, 120, 180, 240], waiting=3))


def test_the_backlog_is_looked_at_once_each_eighth():
    watch = BacklogWatch(Window(0, 8 * S))
    assert not any(watch.grows(S // 10, n, sent=n, waiting=9, running=1) for n in range(100))
