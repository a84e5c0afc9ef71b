"""The driver and the real engine where requests are turned away, wait for a batch, or lose their room."""

from dataclasses import replace
from typing import Any

import pytest

from workloads.driver import drive
from workloads.metrics import Window, summarize, summarize_classes
from workloads.plan import WorkloadPlan, make_plan
from workloads.records import RequestRecord, write_run
from workloads.slo import parse_slo
from workloads.spec import spec_from_dict
from workloads.validity import check_validity
from workloads.waits import WAIT_CAUSES, wait_times

S = 1_000_000_000
MS = 1_000_000


def plan_of(rate: float | None = 20.0, seed: int = 3, **changes: Any) -> WorkloadPlan:
    values = {"name": "test", "prompt_tokens": "uniform:32..192", "output_tokens": 20, **changes}
    return make_plan(spec_from_dict(values), rate=rate, seed=seed, vocab_size=32_000, warmup_s=1.0, window_s=10.0)


def failed_checks(validity: dict[str, Any]) -> set[str]:
    return {check["name"] for check in validity["checks"] if not check["ok"]}


def statuses(requests: list[RequestRecord]) -> set[str]:
    return {r.status for r in requests if r.phase == "window"}


@pytest.mark.parametrize(
    ("limits", "status"),
    [({"max_queue_len": 4}, "shed"), ({"max_queue_tokens": 500}, "shed"), ({"queue_timeout": 0.5}, "queue_timeout")],
)
def test_an_overload_that_is_turned_away_is_a_valid_run_that_misses(
    make_engine, limits: dict[str, Any], status: str
) -> None:
    engine, plan, slo = make_engine(seats=2, **limits), plan_of(), parse_slo("p95_ttft=2s")
    result = drive(engine, plan, slo=slo, stop_when_settled=False)
    assert not engine.has_work
    assert statuses(result.requests) == {"ok", status}
    assert failed_checks(check_validity(result, plan)) == set()
    verdict = slo.judge(result.requests)
    lost = [r for r in result.requests if r.phase == "window" and r.status == status]
    assert verdict.state == "infeasible"
    assert verdict.bounds[0].met_share == 1 - len(lost) / (plan.num_window_requests or 0)
    assert all(next(iter(limits)) in (r.error or "") for r in lost)


def test_those_turned_away_come_back_and_are_served_when_the_burst_is_over(make_engine) -> None:
    plan = plan_of(rate=4.0, arrival="spikes:multiplier=20,length_s=1,every_s=11", retries=10)
    result = drive(make_engine(seats=2, max_queue_len=3, queue_timeout=0.4), plan)
    assert statuses(result.requests) == {"ok"}
    again = [r for r in result.requests if r.attempts > 1]
    assert len(again) > 5
    assert all(r.t_admit is not None and r.t_admit - r.t_sched >= S for r in again)
    summary = summarize(result.requests, result.iterations, result.window)
    again = [r for r in again if r.phase == "window"]
    assert (summary["num_shed"], summary["num_queue_timeouts"]) == (0, 0)
    assert summary["num_turned_away"] == summary["num_retries"] == sum(r.attempts - 1 for r in again)


def test_what_a_client_waits_before_it_sends_again_is_no_wait_for_the_engine(make_engine) -> None:
    plan = plan_of(rate=4.0, arrival="spikes:multiplier=20,length_s=1,every_s=11", retries=10)
    result = drive(make_engine(seats=2, max_queue_len=3, queue_timeout=0.4), plan)
    waits = wait_times(result.requests, result.iterations)
    for record, by_cause in zip(result.requests, waits.by_cause, strict=True):
        left_queue = record.t_end if record.t_admit is None else record.t_admit
        assert by_cause.sum() == (left_queue or 0) - record.t_sched
        # A client waits for a second or more; a try in vain for no longer than the limit, and the step it ends in.
        retry = by_cause[WAIT_CAUSES.index("retry")]
        assert retry >= (record.attempts - 1) * S
        assert by_cause.sum() - retry <= record.attempts * (400 * MS + 3 * 10 * MS)


@pytest.mark.parametrize(("arrival", "rate"), [("poisson", 8.0), ("closed:4", None), ("closed:2..6,period_s=2", None)])
@pytest.mark.parametrize("batching", ["static", "dynamic"])
def test_batches_are_driven_to_their_end(make_engine, batching: str, arrival: str, rate: float | None) -> None:
    engine = make_engine(batching=batching, max_queue_delay=0.3, preferred_batch_size=5)
    plan = plan_of(rate, arrival=arrival)
    result = drive(engine, plan)
    assert statuses(result.requests) == {"ok"}
    assert failed_checks(check_validity(result, plan)) <= {"window_requests"}
    assert all(s.t_end > s.t_start for s in result.iterations)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_what_the_scheduler_did_to_a_request_is_in_its_record(make_engine, mode: str, tmp_path) -> None:
    classes = {
        "urgent": {"share": 1, "priority": 0, "prompt_tokens": "uniform:32..192", "output_tokens": 20},
        "patient": {"share": 1, "priority": 1, "prompt_tokens": "uniform:32..192", "output_tokens": 40},
    }
    spec = spec_from_dict({"name": "two", "classes": classes})
    plan = make_plan(spec, rate=12.0, seed=5, vocab_size=32_000, warmup_s=1.0, window_s=10.0)

    def run(name: str):
        engine = make_engine(seats=8, blocks=40, max_model_len=512, policy="priority", preemption_mode=mode)
        result = drive(engine, plan, slo=parse_slo("p95_ttft=1s"), stop_when_settled=False)
        summary = summarize(result.requests, result.iterations, result.window)
        by_class = summarize_classes(result.requests, result.iterations, result.window)
        meta = {"summary": summary, "classes": by_class}
        return result, meta, write_run(tmp_path / name, meta, result.requests, result.iterations)

    (result, meta, one), (_, _, two) = run("a"), run("b")
    assert all((one / f.name).read_bytes() == f.read_bytes() for f in two.iterdir())
    assert {(r.class_name, r.priority) for r in result.requests} == {("urgent", 0), ("patient", 1)}
    preempted = sum(r.preemptions for r in result.requests)
    assert preempted > 0
    assert sum(r.preemptions_swap for r in result.requests) == (preempted if mode == "swap" else 0)
    assert preempted == sum(s.preemptions_recompute + s.preemptions_swap for s in result.iterations)
    assert (meta["summary"]["swapped_out_bytes"] > 0) == (mode == "swap")
    assert sum(r.recomputed_tokens for r in result.requests) == sum(s.recomputed_tokens for s in result.iterations)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_the_share_computed_again_is_the_same_by_request_as_by_step(make_engine, mode: str) -> None:
    engine = make_engine(seats=8, blocks=40, max_model_len=512, preemption_mode=mode)
    result = drive(engine, plan_of(rate=12.0))
    requests = [replace(r, phase="window") for r in result.requests]
    everything = Window(0, result.iterations[-1].t_end + 1)
    by_step = summarize(requests, result.iterations, everything)
    by_request = summarize_classes(requests, result.iterations, everything)["all"]
    assert by_step["preemptions"] > 0
    assert by_request["recomputed_tokens"] == by_step["recomputed_tokens"]
    assert by_request["recomputed_share"] == pytest.approx(by_step["recomputed_share"], rel=0.01)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "sjf", "tiered"])
def test_all_waiting_is_told_by_cause(make_engine, policy: str) -> None:
    engine = make_engine(seats=8, blocks=40, max_model_len=512, policy=policy, preemption_mode="recompute")
    result = drive(engine, plan_of(rate=20.0), drain_timeout_s=5.0)
    waits = wait_times(result.requests, result.iterations)
    for record, by_cause, after in zip(result.requests, waits.by_cause, waits.after_preemption, strict=True):
        first_end = record.t_end if record.t_admit is None else record.t_admit
        assert by_cause.sum() - after == (first_end or 0) - record.t_sched
    totals = dict(zip(WAIT_CAUSES, waits.by_cause.sum(axis=0).tolist(), strict=True))
    assert totals["blocks"] > 0
    assert totals["behind_head"] > 0
    assert waits.by_cause[:, WAIT_CAUSES.index("step")].max() <= 10 * MS
