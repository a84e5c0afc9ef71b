"""The driver against the real engine, with steps of a fixed time on a virtual clock."""

import gc

import pytest

from engine.request import Request, SamplingParams
from workloads.driver import DriveError, Progress, drive
from workloads.metrics import summarize
from workloads.plan import make_plan
from workloads.records import write_run
from workloads.slo import parse_slo
from workloads.spec import load_spec

S = 1_000_000_000
MS = 1_000_000


def plan_of(*overrides, rate=5.0, seed=3, warmup_s=2.0, window_s=20.0):
    spec = load_spec("chat-small", ["output_tokens=20", *overrides])
    return make_plan(spec, rate=rate, seed=seed, vocab_size=32_000, warmup_s=warmup_s, window_s=window_s)


def window_of(result):
    return [r for r in result.requests if r.phase == "window"]


@pytest.mark.parametrize("seed", range(3))
def test_requests_are_sent_at_their_time_or_after_the_step_in_progress(make_engine, seed):
    plan = plan_of(seed=seed)
    result = drive(make_engine(step_ms=10), plan)
    assert len(window_of(result)) == plan.num_window_requests
    for record, planned in zip(result.requests, plan, strict=False):
        assert record.t_send is not None
        assert record.t_sched == 5 * S + planned.t_offset_ns
        assert record.t_sched <= record.t_send <= record.t_sched + 10 * MS


def test_each_window_request_is_recorded_to_its_end(make_engine):
    engine = make_engine(step_ms=10)
    result = drive(engine, plan_of(), slo=parse_slo("p95_ttft=30ms"))
    assert not engine.has_work
    assert result.stopped_early is None
    for record in window_of(result):
        assert (record.status, record.finish_reason, record.error) == ("ok", "length", None)
        assert record.output_tokens == record.max_tokens == sum(record.chunk_tokens) == 20
        assert record.t_sched <= record.t_send <= record.t_admit < record.t_first < record.t_last == record.t_end
        assert record.t_last - record.t_first == 190 * MS
        assert record.history[-1].kind == "finished"
        assert record.good == (record.t_first - record.t_sched <= 30 * MS)


def test_the_schedule_waits_for_no_answer(make_engine):
    slow = drive(make_engine(step_ms=200, seats=1), plan_of(), drain_timeout_s=1.0)
    fast = drive(make_engine(step_ms=1), plan_of())
    schedule = {r.index: r.t_sched for r in fast.requests if r.phase == "window"}
    assert schedule == {r.index: r.t_sched for r in slow.requests if r.phase == "window"}


def test_load_goes_on_until_the_window_has_ended(make_engine):
    result = drive(make_engine(step_ms=200), plan_of())
    last_end = max(r.t_end for r in window_of(result))
    cooldown = [r for r in result.requests if r.phase == "cooldown"]
    assert cooldown
    assert all(result.window.end_ns <= r.t_sched <= last_end for r in cooldown)
    assert any(r.status == "unfinished" for r in cooldown)


def test_what_is_not_done_at_the_drain_timeout_has_timed_out(make_engine):
    engine = make_engine(step_ms=100, seats=2)
    result = drive(engine, plan_of(), drain_timeout_s=3.0)
    lost = [r for r in window_of(result) if r.status == "timeout"]
    assert lost
    assert {r.t_end for r in lost} == {result.iterations[-1].t_end}
    assert 3 * S <= lost[0].t_end - result.window.end_ns <= 3 * S + 100 * MS
    assert not engine.has_work


def test_an_idle_engine_is_waited_for_without_steps(make_engine):
    result = drive(make_engine(step_ms=1), plan_of("arrival=constant", rate=0.5))
    sched = [r.t_sched for r in window_of(result)]
    assert [r.t_send for r in window_of(result)] == sched
    assert result.window.duration_s == 20.0
    assert len(result.iterations) == 20 * sum(r.status == "ok" for r in result.requests)


def test_a_request_that_can_never_fit_is_refused_and_the_run_goes_on(make_engine):
    result = drive(make_engine(max_model_len=120), plan_of(), slo=parse_slo("p50_ttft=10s"), stop_when_settled=False)
    refused = [r for r in window_of(result) if r.status == "refused"]
    assert {r.prompt_tokens > 100 for r in refused} == {True}
    assert {r.status for r in window_of(result) if r.prompt_tokens <= 100} == {"ok"}
    assert refused[0].t_end == refused[0].t_send
    assert refused[0].good is False
    assert "max_model_len=120" in refused[0].error


def test_equal_seeds_give_equal_bytes(make_engine, tmp_path):
    def run(name):
        result = drive(make_engine(), plan_of("arrival=gamma:0.3"), slo=parse_slo("p95_ttft=50ms"))
        summary = summarize(result.requests, result.iterations, result.window)
        meta = {"schema_version": 2, "kind": "run", "summary": summary}
        return write_run(tmp_path / name, meta, result.requests, result.iterations)

    one, two = run("a"), run("b")
    assert all((one / f.name).read_bytes() == f.read_bytes() for f in two.iterdir())


def test_a_closed_loop_sends_the_next_as_one_ends(make_engine):
    result = drive(make_engine(seats=4), plan_of("arrival=closed:4", rate=None))
    ends = {r.t_end for r in result.requests}
    for record in result.requests[4:]:
        assert record.t_sched in ends
    assert {s.running for s in result.iterations} == {4}
    assert {r.status for r in window_of(result)} == {"ok"}
    assert all(result.window.start_ns <= r.t_sched < result.window.end_ns for r in window_of(result))


def test_a_fluctuating_closed_loop_follows_its_levels(make_engine):
    plan = plan_of("arrival=closed:1..6,period_s=5", rate=None)
    result = drive(make_engine(seats=8), plan)
    start = result.window.start_ns - plan.warmup_ns
    for t_s in range(4, 22, 5):  # the last second of a period: the level of before has run out
        now = start + t_s * S
        running = {s.running for s in result.iterations if now <= s.t_start < now + S - 50 * MS}
        assert running == {plan.concurrency_at(now - start)}


def test_in_a_closed_loop_of_refusals_each_client_pauses_between_them(make_engine):
    result = drive(make_engine(max_model_len=30), plan_of("arrival=closed:4", rate=None))
    assert {r.status for r in result.requests} == {"refused"}
    assert len(window_of(result)) == 4 * 200


def test_progress_is_told_and_a_stop_is_heard(make_engine):
    seen: list[Progress] = []
    engine = make_engine()
    result = drive(engine, plan_of(), on_progress=seen.append, should_stop=lambda: len(seen) == 20)
    assert result.stopped_early == "interrupted"
    assert [p.phase for p in seen[:2]] == ["warmup", "warmup"]
    assert seen[-1].elapsed_s == pytest.approx(4.75, abs=0.25)
    assert seen[-1].planned_s == 22.0
    assert result.window.duration_s == pytest.approx(3.0, abs=0.25)
    assert not engine.has_work
    assert {r.status for r in result.requests} <= {"ok", "unfinished"}


def test_a_failed_step_keeps_what_was_measured(make_engine):
    engine = make_engine()
    engine.executor.fail_after_steps = 500
    with pytest.raises(DriveError, match="MemoryError: no room left") as caught:
        drive(engine, plan_of())
    partial = caught.value.partial
    assert isinstance(caught.value.__cause__, MemoryError)
    assert len(partial.iterations) == 500
    assert [r.index for r in partial.requests] == list(range(len(partial.requests)))
    failed = [r for r in partial.requests if r.status == "failed"]
    assert failed
    assert failed[0].error == "MemoryError: no room left"
    assert any(r.status == "ok" for r in partial.requests)
    assert not engine.has_work


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_not_collected_during_the_run_and_as_before_after_it(make_engine, enabled):
    seen: list[bool] = []
    was_enabled = gc.isenabled()
    try:
        gc.enable() if enabled else gc.disable()
        drive(make_engine(), plan_of(window_s=1.0), on_progress=lambda p: seen.append(gc.isenabled()))
        assert gc.isenabled() is enabled
    finally:
        gc.enable() if was_enabled else gc.disable()
    assert set(seen) == {False}


def test_an_engine_with_work_is_not_driven(make_engine):
    engine = make_engine()
    drive(engine, plan_of(window_s=1.0))
    drive(engine, plan_of(window_s=1.0, seed=4))
    engine.add_request(Request("other", [1, 2, 3], SamplingParams()))
    with pytest.raises(ValueError, match="idle engine"):
        drive(engine, plan_of())
