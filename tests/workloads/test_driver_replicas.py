"""The driver on replicas in processes of their own: records as from one engine, whatever the replicas told when."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from engine.config import SchedulerConfig
from engine.parallel.process_replicas import ProcessReplicas
from engine.request import RequestEvent
from tests.engine.small_replicas import VOCABULARY, load_replicas
from workloads.drive_result import DriveResult
from workloads.driver import drive
from workloads.metrics import summarize
from workloads.plan import WorkloadPlan, make_plan
from workloads.slo import parse_slo
from workloads.spec import spec_from_dict
from workloads.waits import wait_times

S = 1_000_000_000


@pytest.fixture(scope="module")
def loaded() -> Iterator[ProcessReplicas]:
    replicas = load_replicas()
    yield replicas
    replicas.shutdown()


@pytest.fixture
def replicas(loaded: ProcessReplicas) -> ProcessReplicas:
    loaded.reconfigure(scheduler=SchedulerConfig())
    return loaded


def plan_of(rate: float | None = 30.0, window_s: float = 2.0, **values: Any) -> WorkloadPlan:
    spec = spec_from_dict({"name": "test", "prompt_tokens": "uniform:4..40", "output_tokens": 12} | values)
    return make_plan(spec, rate=rate, seed=3, vocab_size=VOCABULARY, warmup_s=0.5, window_s=window_s)


def assert_steps_are_sane(result: DriveResult) -> None:
    starts = [step.t_start for step in result.iterations]
    assert starts == sorted(starts)
    assert {step.replica for step in result.iterations} == {0, 1}
    for replica in (0, 1):
        steps = [step for step in result.iterations if step.replica == replica]
        assert [step.iteration for step in steps] == list(range(len(steps)))
        assert all(before.t_end <= after.t_start for before, after in pairwise(steps))


@pytest.mark.parametrize(("arrival", "rate"), [("poisson", 30.0), ("closed:4", None)])
def test_every_request_is_recorded_to_its_end(replicas: ProcessReplicas, arrival: str, rate: float | None) -> None:
    result = drive(replicas, plan_of(rate, arrival=arrival), slo=parse_slo("p95_ttft=30s"), stop_when_settled=False)
    assert not replicas.has_work
    assert_steps_are_sane(result)
    window = [record for record in result.requests if record.phase == "window"]
    assert len(window) > 20
    for record in window:
        assert (record.status, record.finish_reason, record.error) == ("ok", "length", None)
        assert None not in (record.t_send, record.t_admit, record.t_first, record.t_last)
        times = [record.t_sched, record.t_send, record.t_admit, record.t_first, record.t_last, record.t_end]
        assert times == sorted(times)  # type: ignore[type-var]
        assert record.output_tokens == record.max_tokens == 12
        assert record.history[-1].kind == "finished"
        assert record.good is True
    assert {record.replica for record in window} == {0, 1}
    waits = wait_times(window, result.iterations)
    assert waits.by_cause.sum(axis=1).tolist() == [(r.t_admit or 0) - r.t_sched for r in window]


def test_what_is_not_done_at_the_drain_timeout_is_recorded_as_far_as_it_went(replicas: ProcessReplicas) -> None:
    replicas.reconfigure(scheduler=SchedulerConfig(max_num_seqs=2))
    plan = plan_of(arrival="closed:12", rate=None, window_s=0.5, prompt_tokens=20, output_tokens=139)
    result = drive(replicas, plan, drain_timeout_s=0.0)
    lost = [record for record in result.requests if record.status == "timeout"]
    assert lost
    assert not replicas.has_work
    admitted = [record for record in lost if record.t_first is not None]
    for record in admitted:
        assert record.t_admit is not None
        assert record.finish_reason == "abort"
        assert record.history[-1].kind == "finished"
        assert 0 < record.output_tokens < 139
    assert all(record.t_admit is None or record.history for record in lost)
    assert wait_times(lost, result.iterations).by_cause.min() >= 0
    replicas.reconfigure()
    again = drive(replicas, plan_of())
    assert {record.status for record in again.requests if record.phase == "window"} == {"ok"}
    assert_steps_are_sane(again)


@pytest.mark.parametrize("retries", [0, 1])
def test_requests_shed_are_recorded_as_if_it_had_been_known_at_once(replicas: ProcessReplicas, retries: int) -> None:
    replicas.reconfigure(scheduler=SchedulerConfig(max_num_seqs=1, max_queue_len=1))
    plan = plan_of(rate=400.0, window_s=0.5, output_tokens=60, prompt_tokens=9, retries=retries)
    result = drive(replicas, plan, drain_timeout_s=60.0)
    window = [record for record in result.requests if record.phase == "window"]
    assert {record.status for record in window} <= {"ok", "shed"}
    shed = [record for record in window if record.status == "shed"]
    assert shed
    for record in shed:
        assert (record.finish_reason, record.t_admit, record.output_tokens) == (None, None, 0)
        assert record.error == f"{record.request_id} was turned away: 1 requests wait already, max_queue_len=1"
        assert record.attempts == retries + 1
        assert [event.kind for event in record.history] == ["turned_away"] * (retries + 1)
        end = record.history[-1]
        assert end == RequestEvent(record.t_end or 0, "turned_away", 0, detail="max_queue_len")
        assert all(after.time_ns - before.time_ns >= S for before, after in pairwise(record.history))
    summary = summarize(result.requests, result.iterations, result.window)
    assert summary["num_shed"] == len(shed)
    assert summary["num_turned_away"] == sum(e.kind == "turned_away" for r in window for e in r.history)


def test_requests_that_waited_too_long_are_recorded_with_the_reason(replicas: ProcessReplicas) -> None:
    replicas.reconfigure(scheduler=SchedulerConfig(max_num_seqs=1, queue_timeout=0.01))
    result = drive(replicas, plan_of(rate=400.0, window_s=0.5, output_tokens=60, prompt_tokens=9), drain_timeout_s=60.0)
    late = [record for record in result.requests if record.status == "queue_timeout"]
    assert late
    for record in late:
        assert record.finish_reason == "queue_timeout"
        assert [event.kind for event in record.history] == ["queued", "finished", "turned_away"]


def test_requests_that_can_never_fit_are_refused_and_the_run_goes_on(replicas: ProcessReplicas) -> None:
    result = drive(replicas, plan_of(prompt_tokens="uniform:100..200"))
    window = [record for record in result.requests if record.phase == "window"]
    assert {record.status for record in window} == {"ok", "refused"}
    for record in window:
        assert (record.status == "refused") == (record.prompt_tokens + 12 > 160)
    refused = [record for record in window if record.status == "refused"]
    assert all("exceed max_model_len=160" in (record.error or "") for record in refused)
    assert all(record.t_end == record.t_send for record in refused if record.attempts == 1)
