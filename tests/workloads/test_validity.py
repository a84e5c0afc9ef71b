"""What makes a run worth believing, and what does not."""

from dataclasses import replace

import pytest

from workloads.driver import drive
from workloads.metrics import Window
from workloads.plan import make_plan
from workloads.spec import load_spec
from workloads.validity import check_validity

MS = 1_000_000
S = 1_000_000_000


def plan_of(*overrides, rate=5.0, seed=3, warmup_s=2.0, window_s=20.0):
    spec = load_spec("chat-small", ["output_tokens=20", *overrides])
    return make_plan(spec, rate=rate, seed=seed, vocab_size=32_000, warmup_s=warmup_s, window_s=window_s)


def failed_checks(result, plan):
    validity = check_validity(result, plan)
    failed = {c["name"] for c in validity["checks"] if not c["ok"]}
    assert validity["valid"] == (not failed - {"window_requests"})
    return failed


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("arrival", "rate"),
    [
        ("poisson", 5.0),
        ("gamma:0.2", 5.0),
        ("constant", 5.0),
        ("spikes:multiplier=5,length_s=1,every_s=9", 5.0),
        ("closed:4", None),
    ],
)
def test_an_honest_run_is_valid(make_engine, seed, arrival, rate):
    plan = plan_of(f"arrival={arrival}", rate=rate, seed=seed)
    assert failed_checks(drive(make_engine(), plan), plan) == set()


@pytest.mark.parametrize("seed", range(3))
def test_an_overloaded_run_is_slow_and_not_invalid(make_engine, seed):
    plan = plan_of(rate=20.0, seed=seed)
    assert failed_checks(drive(make_engine(seats=2), plan, drain_timeout_s=1.0), plan) == set()


def test_each_check_has_the_keys_of_the_record(make_engine):
    plan = plan_of()
    for check in check_validity(drive(make_engine(), plan), plan)["checks"]:
        assert set(check) == {"name", "ok", "value", "limit", "detail"}


def test_few_requests_warn_and_none_is_invalid(make_engine):
    plan = plan_of("arrival=constant", rate=0.5)
    result = drive(make_engine(), plan)
    assert failed_checks(result, plan) == {"window_requests"}
    assert not check_validity(replace(result, requests=[]), plan)["valid"]


def test_another_rate_than_asked_is_invalid(make_engine):
    plan = plan_of()
    result = drive(make_engine(), plan)
    half = replace(result, requests=result.requests[::2])
    assert failed_checks(half, plan) == {"offered_rate"}


def test_a_driver_later_than_the_step_in_progress_is_invalid(make_engine):
    plan = plan_of()
    result = drive(make_engine(), plan)
    late = replace(result, requests=[replace(r, t_send=(r.t_send or 0) + 50 * MS) for r in result.requests])
    assert failed_checks(late, plan) == {"driver_lag"}


def test_a_step_of_one_of_several_engines_is_no_reason_to_be_late(make_engine):
    plan = plan_of(warmup_s=4.0)
    result = drive(make_engine(step_ms=40), plan)
    late = replace(result, requests=[replace(r, t_send=(r.t_send or 0) + 30 * MS) for r in result.requests])
    assert failed_checks(late, plan) == set()
    of_several = replace(late, iterations=[replace(step, replica=0) for step in late.iterations])
    assert failed_checks(of_several, plan) == {"driver_lag"}


def test_refusals_are_invalid_and_say_why(make_engine):
    plan = plan_of()
    result = drive(make_engine(max_model_len=120), plan)
    assert failed_checks(result, plan) == {"failures"}
    detail = next(c["detail"] for c in check_validity(result, plan)["checks"] if c["name"] == "failures")
    assert "max_model_len=120" in detail


def test_another_runs_cache_is_found_out(make_engine):
    engine, plan = make_engine(), plan_of()
    assert failed_checks(drive(engine, plan), plan) == set()
    assert failed_checks(drive(engine, plan), plan) == {"unintended_cache_hits"}


def test_a_window_that_began_with_an_empty_system_is_invalid_when_it_shows(make_engine):
    cold, warm = plan_of("output_tokens=100", warmup_s=0.0), plan_of("output_tokens=100", warmup_s=4.0)
    assert failed_checks(drive(make_engine(seats=64, step_ms=40), cold), cold) == {"warmup_left"}
    assert failed_checks(drive(make_engine(seats=64, step_ms=40), warm), warm) == set()


def test_an_interrupted_run_is_invalid(make_engine):
    plan = plan_of()
    polls = iter(range(10_000))
    result = drive(make_engine(), plan, should_stop=lambda: next(polls) > 60)
    assert failed_checks(result, plan) == {"complete"}


def test_a_window_that_never_began_is_invalid(make_engine):
    plan = plan_of()
    result = drive(make_engine(), plan)
    empty = replace(result, requests=[], iterations=[], window=Window(S, S))
    assert not check_validity(empty, plan)["valid"]
