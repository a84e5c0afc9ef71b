"""What the driver does when a request is turned away, or the engine waits for more of them: an engine by script."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from engine.clock import VirtualClock
from engine.errors import RequestShed
from engine.request import Request, RequestEvent
from engine.scheduler.plan import TokenEvent
from engine.trace import IterationRecord
from workloads.drive_result import DriveResult
from workloads.driver import DriveError, drive
from workloads.early_stop import VERDICT_SETTLED
from workloads.feed import TURNED_AWAY_PAUSE_NS
from workloads.metrics import summarize, summarize_classes, ttft_ns
from workloads.plan import WorkloadPlan, make_plan
from workloads.records import RequestRecord
from workloads.slo import parse_slo
from workloads.spec import spec_from_dict

S = 1_000_000_000
MS = 1_000_000
STEP_NS = 100 * MS


class ForwardClock(VirtualClock):
    """Nobody may sleep without getting anywhere: on a virtual clock that is an endless loop."""

    def sleep_until(self, t_ns: int) -> None:
        assert t_ns > self.now_ns()
        super().sleep_until(t_ns)


class ScriptedEngine:
    """Ends one request per step, in order of arrival, with one token. Whom it turns away is the test's to say.

    Attributes:
        sends: (time, request) of every `add_request`.
        sheds: whether to turn a request away at the door.
        patience_ns: a request that has waited for longer is ended at the next step; None for ever.
        batch: no step while fewer wait, and the first has waited for less than `delay_ns`.
    """

    def __init__(
        self,
        sheds: Callable[[Request, int], bool] = lambda request, now: False,
        patience_ns: int | None = None,
        batch: int = 1,
        delay_ns: int = 0,
        fails_at_step: int | None = None,
    ) -> None:
        self.clock = ForwardClock(5 * S)
        self.sends: list[tuple[int, Request]] = []
        self.queue: list[tuple[int, Request]] = []
        self.steps = 0
        self._sheds = sheds
        self._patience_ns = patience_ns
        self._batch = batch
        self._delay_ns = delay_ns
        self._fails_at_step = fails_at_step

    @property
    def has_work(self) -> bool:
        return bool(self.queue)

    @property
    def idle_until_ns(self) -> int | None:
        if not self.queue or len(self.queue) >= self._batch:
            return None
        until = self.queue[0][0] + self._delay_ns
        return until if until > self.clock.now_ns() else None

    def add_request(self, request: Request) -> None:
        now = self.clock.now_ns()
        self.sends.append((now, request))
        if self._sheds(request, now):
            raise RequestShed(f"{request.request_id} was turned away: 4 wait already", "max_queue_len", 2.0)
        request.history.append(RequestEvent(now, "queued", request.num_prompt_tokens))
        self.queue.append((now, request))

    def abort(self, request_id: str) -> bool:
        left = [entry for entry in self.queue if entry[1].request_id != request_id]
        found, self.queue = len(left) < len(self.queue), left
        return found

    def step(self) -> tuple[list[TokenEvent], IterationRecord]:
        assert self.idle_until_ns is None
        if self.steps == self._fails_at_step:
            raise MemoryError("no room left")
        self.steps += 1
        t_start = self.clock.now_ns()
        patience = self._patience_ns
        expired = [] if patience is None else [r for queued, r in self.queue if t_start - queued > patience]
        self.queue = [entry for entry in self.queue if entry[1] not in expired]
        events = [TokenEvent(r.request_id, (), t_start, "queue_timeout") for r in expired]
        if self.queue:
            _, request = self.queue.pop(0)
            request.history.append(RequestEvent(t_start, "admitted", 0))
            self.clock.advance(STEP_NS)
            events.append(TokenEvent(request.request_id, (7,), t_start + STEP_NS, "length"))
        values: dict[str, Any] = dict.fromkeys(IterationRecord.__dataclass_fields__, 0)
        values |= {"t_start": t_start, "t_end": self.clock.now_ns(), "wait_cause": None, "blocked_request": None}
        return events, IterationRecord(**values)


def plan_of(arrival: str = "constant", rate: float | None = 2.0, retries: int = 0) -> WorkloadPlan:
    values = {"name": "test", "arrival": arrival, "prompt_tokens": 10, "output_tokens": 1, "retries": retries}
    return make_plan(spec_from_dict(values), rate=rate, seed=3, vocab_size=100, warmup_s=0.0, window_s=10.0)


def window_of(result: DriveResult) -> list[RequestRecord]:
    return [r for r in result.requests if r.phase == "window"]


def is_third(request: Request, now: int) -> bool:
    return request.request_id == "req-3"


def test_a_request_that_is_shed_has_ended_with_the_reason_and_the_run_goes_on() -> None:
    result = drive(ScriptedEngine(is_third), plan_of(), slo=parse_slo("p50_ttft=1s"))
    assert [r.status for r in window_of(result)].count("ok") == 19
    record = result.requests[3]
    assert (record.status, record.finish_reason, record.good) == ("shed", None, False)
    assert record.error == "req-3 was turned away: 4 wait already"
    assert (record.attempts, record.t_end, record.t_admit) == (1, record.t_send, None)
    assert record.history == (RequestEvent(record.t_end or 0, "turned_away", 0, detail="max_queue_len"),)


def test_a_request_that_is_shed_is_sent_again_when_it_was_told_to_and_recorded_once() -> None:
    engine = ScriptedEngine(lambda request, now: is_third(request, now) and request.attempt < 2)
    result = drive(engine, plan_of(retries=2), slo=parse_slo("p50_ttft=1s"))
    record = result.requests[3]
    sends = [(now, r) for now, r in engine.sends if r.request_id == "req-3"]
    assert all(2 * S <= b[0] - a[0] <= 2 * S + STEP_NS for a, b in pairwise(sends))
    assert [r.attempt for _, r in sends] == [0, 1, 2]
    assert {(r.arrival_ns, tuple(r.prompt_token_ids), r.sampling) for _, r in sends} == {
        (record.t_sched, tuple(sends[0][1].prompt_token_ids), sends[0][1].sampling)
    }
    assert [r.index for r in result.requests] == list(range(len(result.requests)))
    assert (record.status, record.error, record.attempts) == ("ok", None, 3)
    assert (record.t_send, record.t_admit) == (sends[0][0], sends[2][0])
    assert [(e.kind, e.time_ns) for e in record.history] == [
        ("turned_away", sends[0][0]),
        ("turned_away", sends[1][0]),
        ("queued", sends[2][0]),
        ("admitted", sends[2][0]),
    ]
    assert ttft_ns(record) == sends[2][0] + STEP_NS - record.t_sched
    assert record.good is False


def test_every_try_that_was_turned_away_is_counted_though_the_request_was_served_in_the_end() -> None:
    engine = ScriptedEngine(lambda request, now: is_third(request, now) and request.attempt < 2)
    result = drive(engine, plan_of(retries=2))
    summary = summarize(result.requests, result.iterations, result.window)
    only_class = summarize_classes(result.requests, result.iterations, result.window)["all"]
    for numbers in (summary, only_class):
        assert (numbers["num_shed"], numbers["num_turned_away"], numbers["num_retries"]) == (0, 2, 2)
        # Two pauses of 2 s and a step under way at the end of each, in the mean over 20 requests.
        assert 4000 / 20 <= numbers["mean_wait_retry_ms"] <= 4200 / 20
        assert 4000 <= numbers["max_wait_ms"] <= 4200


def test_a_request_given_up_has_been_turned_away_as_often_as_it_was_sent() -> None:
    result = drive(ScriptedEngine(is_third), plan_of(retries=2))
    summary = summarize(result.requests, result.iterations, result.window)
    assert (summary["num_shed"], summary["num_turned_away"], summary["num_retries"]) == (1, 3, 2)


@pytest.mark.parametrize("retries", [1, 2])
def test_a_request_is_given_up_after_its_last_retry(retries: int) -> None:
    engine = ScriptedEngine(is_third)
    record = drive(engine, plan_of(retries=retries)).requests[3]
    sends = [now for now, r in engine.sends if r.request_id == "req-3"]
    assert (record.status, record.attempts, len(sends)) == ("shed", retries + 1, retries + 1)
    assert (record.t_send, record.t_end) == (sends[0], sends[-1])


def test_a_request_that_waited_in_vain_has_ended_with_the_reason() -> None:
    # 20 requests/s come, 10 are served: the queue grows until nobody who comes last is patient enough.
    result = drive(ScriptedEngine(patience_ns=S), plan_of(rate=20.0))
    lost = [r for r in window_of(result) if r.status == "queue_timeout"]
    assert len(lost) > 50
    assert {r.status for r in window_of(result)} == {"ok", "queue_timeout"}
    for record in lost:
        assert (record.finish_reason, record.output_tokens, record.t_admit) == ("queue_timeout", 0, None)
        assert record.error == "turned away: not admitted within queue_timeout"
        assert record.history[-1] == RequestEvent(record.t_end or 0, "turned_away", 0, detail="queue_timeout")
        assert record.t_end is not None
        assert record.t_send is not None
        assert S < record.t_end - record.t_send <= S + 2 * STEP_NS


def test_a_request_that_waited_in_vain_is_sent_again_after_a_second() -> None:
    patience_ns = 300 * MS
    engine = ScriptedEngine(patience_ns=patience_ns)
    result = drive(engine, plan_of("spikes:multiplier=30,length_s=1,every_s=10", rate=2.0, retries=3))
    again = [r for r in window_of(result) if r.attempts > 1]
    assert again
    assert {r.status for r in again} == {"ok"}
    for record in again:
        sends = [now for now, r in engine.sends if r.request_id == record.request_id]
        queued = [e.time_ns for e in record.history if e.kind == "queued"]
        assert (record.t_send, record.attempts) == (sends[0], len(sends))
        assert queued == sends
        away = [e for e in record.history if e.kind == "turned_away"]
        assert {(e.detail, e.tokens) for e in away} == {("queue_timeout", 0)}
        assert [e.time_ns + S for e in away] == pytest.approx(sends[1:], abs=STEP_NS)
        assert [e.kind for e in record.history[-4:]] == ["queued", "turned_away", "queued", "admitted"]
        assert all(0 < b - a - patience_ns - S <= 2 * STEP_NS for a, b in pairwise(sends))


def test_in_a_closed_loop_each_client_pauses_after_its_own_request_was_turned_away() -> None:
    result = drive(ScriptedEngine(lambda request, now: True), plan_of("closed:4", rate=None))
    assert {r.status for r in result.requests} == {"shed"}
    assert len(window_of(result)) == 4 * 10 * S // TURNED_AWAY_PAUSE_NS


@pytest.mark.parametrize("one_in", [2, 3, 7])
def test_a_closed_loop_keeps_its_number_of_clients_though_some_are_turned_away(one_in: int) -> None:
    engine = ScriptedEngine(lambda request, now: int(request.request_id.removeprefix("req-")) % one_in == 0)
    result = drive(engine, plan_of("closed:4", rate=None))
    assert {r.status for r in window_of(result)} == {"ok", "shed"}
    free = Counter((r.t_end or 0) + (r.status == "shed") * TURNED_AWAY_PAUSE_NS for r in result.requests)
    first, others = result.requests[:4], result.requests[4:]
    assert {r.t_sched for r in first} == {result.window.start_ns}
    # Each of the others comes as one client gets free, and every client that was free until the end has sent one.
    sent = Counter(r.t_sched for r in others)
    assert sent <= free
    assert set((free - sent).elements()) <= {t for t in free if t >= others[-1].t_sched}


def test_in_a_closed_loop_a_request_to_be_sent_again_is_still_under_way() -> None:
    engine = ScriptedEngine(lambda request, now: True)
    result = drive(engine, plan_of("closed:4", rate=None, retries=1))
    # Each pair of attempts takes two seconds, and a successor comes a tenth of a second after the last one.
    assert {r.attempts for r in window_of(result)} == {2}
    assert all(sum(a <= now < a + 2 * S for a, r in engine.sends if not r.attempt) <= 4 for now, _ in engine.sends)


@pytest.mark.parametrize(("arrival", "rate"), [("constant", 2.0), ("closed:2", None), ("closed:1..3,period_s=2", None)])
def test_a_batch_that_grows_is_slept_through_and_requests_come_in_meanwhile(arrival: str, rate: float | None) -> None:
    engine = ScriptedEngine(batch=4, delay_ns=1200 * MS)
    result = drive(engine, plan_of(arrival, rate))
    assert {r.status for r in window_of(result)} == {"ok"}
    assert engine.steps == len(result.iterations)
    if rate is not None:
        assert [r.t_send for r in window_of(result)] == pytest.approx(
            [r.t_sched for r in window_of(result)], abs=STEP_NS
        )


def test_a_batch_that_grows_ends_at_the_drain_timeout() -> None:
    engine = ScriptedEngine(batch=100, delay_ns=60 * S)
    result = drive(engine, plan_of(), drain_timeout_s=3.0)
    assert {r.status for r in window_of(result)} == {"timeout"}
    assert engine.clock.now_ns() == result.window.end_ns + 3 * S
    assert engine.steps == 0
    assert not engine.has_work


def test_requests_turned_away_settle_a_verdict() -> None:
    result = drive(ScriptedEngine(lambda request, now: True), plan_of(rate=20.0), slo=parse_slo("p95_ttft=60s"))
    assert result.stopped_early == VERDICT_SETTLED
    assert len(result.requests) == 16  # the fewest misses of 200 that decide against a p95


def test_a_request_to_be_sent_again_is_overdue_like_any_other() -> None:
    engine = ScriptedEngine(lambda request, now: True)
    result = drive(engine, plan_of(rate=20.0, retries=100), slo=parse_slo("p95_ttft=1s"))
    assert result.stopped_early == VERDICT_SETTLED
    assert result.window.duration_s < 2.0
    assert {r.status for r in result.requests} == {"unfinished"}


def test_who_waits_to_be_sent_again_at_the_drain_timeout_has_timed_out_with_the_reason() -> None:
    result = drive(ScriptedEngine(is_third), plan_of(retries=100), drain_timeout_s=4.5)
    record = result.requests[3]
    assert (record.status, record.finish_reason, record.attempts) == ("timeout", None, 7)
    assert record.error == "req-3 was turned away: 4 wait already"
    assert record.t_end == result.window.end_ns + 4500 * MS


def test_who_waits_to_be_sent_again_when_a_step_fails_is_kept() -> None:
    with pytest.raises(DriveError) as caught:
        drive(ScriptedEngine(is_third, fails_at_step=5), plan_of(retries=100))
    partial = caught.value.partial
    assert [r.status for r in partial.requests] == ["ok"] * 3 + ["failed"] + ["ok"] * 2 + ["failed"]
