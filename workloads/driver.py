"""Plays a workload against an engine in this process and records what comes of it.

The loop hands requests over between two steps, at their scheduled time or as soon after it as the step in progress
allows, and never waits for an answer. Load goes on after the window until all of its requests have ended, so that the
last of them run under the same conditions as the first.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter

from engine.clock import VirtualClock
from engine.errors import RequestRefused, RequestShed
from engine.serving import ServingEngine
from engine.trace import IterationRecord
from workloads.drive_result import DriveError, DriveResult, Progress
from workloads.early_stop import HELD, INTERRUPTED
from workloads.feed import make_feed
from workloads.inflight import InFlight, prepare
from workloads.metrics import NS_PER_S, Window
from workloads.plan import WorkloadPlan
from workloads.records import RequestRecord, Status
from workloads.referee import Referee, StopRules, import_tests
from workloads.retries import Retries
from workloads.slo import Slo

# Idle gaps are slept in pieces, so that `should_stop` and `on_progress` are heard.
POLL_NS = 250_000_000

# A request that waited in vain is sent again after this time; one turned away at the door after the time it was told.
RETRY_AFTER_QUEUE_TIMEOUT_S = 1.0

_TURNED_AWAY: tuple[Status, ...] = ("refused", "shed", "queue_timeout")


def drive(
    engine: ServingEngine,
    plan: WorkloadPlan,
    *,
    slo: Slo | None = None,
    drain_timeout_s: float = 30.0,
    stop_when_settled: bool = True,
    weigh_evidence: bool = True,
    stop_when_held: bool = False,
    race: Sequence[int] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    temperature: float = 0.0,
) -> DriveResult:
    """Play `plan` against an idle engine, which is idle again afterwards.

    Args:
        slo: marks each request good or not, and lets the run stop early.
        drain_timeout_s: how long after the end of the window its requests may take; then they are `timeout`.
        stop_when_settled: end an open loop as soon as the SLO is missed, by arithmetic or by evidence, or its backlog
            grows without bound.
        weigh_evidence: false leaves it at arithmetic; where seconds are simulated, looking costs more than it saves.
        stop_when_held: end its window, too, as soon as there is evidence that the SLO is held; the requests of the
            window go to their end, under load as ever.
        race: good requests of the best run so far, slice by slice (see `workloads.race`); end the run as soon as it
            is behind that one.
        on_progress: called every quarter of a second of the engine's clock, between two steps.
        should_stop: asked as often; true ends the run as `interrupted`.
        temperature: of sampling; 0 is greedy.

    Raises:
        DriveError: a step failed, or a callback; what was measured until then is its `partial`.
        ValueError: the engine has work.
    """
    if engine.has_work:
        raise ValueError("drive() needs an idle engine")
    with _no_garbage_collection(collect_first=not isinstance(engine.clock, VirtualClock)):
        if slo is not None:
            import_tests()
        rules = StopRules(stop_when_settled, weigh_evidence, stop_when_held, race)
        run = _Drive(engine, plan, slo, temperature, rules)
        try:
            return run.play(round(drain_timeout_s * 1e9), on_progress, should_stop)
        except Exception as error:
            raise DriveError(error, run.fail(error)) from error
        finally:
            run.release()


@contextmanager
def _no_garbage_collection(*, collect_first: bool) -> Iterator[None]:
    """Collect now, and not in the middle of a measurement. A virtual clock would not notice, only those who wait."""
    was_enabled = gc.isenabled()
    if collect_first:
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Drive:
    """One run in progress.

    Invariant: a request that was sent is in one of three places: `_under_way` while the engine has it, `_retries`
    while it waits to be sent again, `_records` once it has ended.
    """

    def __init__(
        self, engine: ServingEngine, plan: WorkloadPlan, slo: Slo | None, temperature: float, rules: StopRules
    ) -> None:
        self._engine = engine
        self._plan = plan
        self._slo = slo
        self._temperature = temperature
        self._start_ns = engine.clock.now_ns()
        window_start = self._start_ns + plan.warmup_ns
        self._window = Window(window_start, window_start + plan.window_ns)
        self._feed = make_feed(plan, self._start_ns)
        self._under_way: dict[str, InFlight] = {}
        self._retries = Retries()
        self._window_under_way = 0
        self._records: list[RequestRecord] = []
        self._iterations: list[IterationRecord] = []
        self._referee = Referee(rules, plan, slo, self._window)
        self._held = False

    def play(
        self,
        drain_timeout_ns: int,
        on_progress: Callable[[Progress], None] | None,
        should_stop: Callable[[], bool] | None,
    ) -> DriveResult:
        clock, feed = self._engine.clock, self._feed
        next_poll = self._start_ns
        while True:
            now = clock.now_ns()
            self._send_due(now)
            window_end = self._window.end_ns
            deadline = window_end + drain_timeout_ns
            if now >= window_end and not self._window_under_way and (self._held or feed.window_is_sent(now)):
                return self._finish(now, stopped_early=HELD if self._held else None)
            if now >= deadline:
                return self._finish(now, stopped_early=HELD if self._held else None, overdue="timeout")
            reason = self._reason_to_stop(now)
            if reason == HELD:
                self._end_window(now)
            elif reason is not None:
                return self._finish(now, stopped_early=reason)
            if now >= next_poll:
                next_poll = now + POLL_NS
                if should_stop is not None and should_stop():
                    return self._finish(now, stopped_early=INTERRUPTED)
                if on_progress is not None:
                    on_progress(self._progress(now))
            idle_until = self._idle_until(now)
            if idle_until is None:
                self._step()
            else:
                wake_at = min(idle_until, next_poll, deadline)
                clock.sleep_until(min(wake_at, window_end) if now < window_end else wake_at)

    def fail(self, error: Exception) -> DriveResult:
        """What was recorded until a step failed; `release` comes after it."""
        now = self._engine.clock.now_ns()
        for inflight in (*self._under_way.values(), *self._retries.drain()):
            inflight.end("failed", now, error=f"{type(error).__name__}: {error}")
            self._records.append(inflight.to_record(self._slo))
        return self._result(now, stopped_early=None)

    def release(self) -> None:
        """Leave the engine idle, whatever happened. After a normal end there is nothing left to do."""
        for request_id in self._under_way:
            # A step that failed may have left the engine unable even to abort; its error is the one to tell.
            with suppress(Exception):
                self._engine.abort(request_id)
        self._under_way.clear()

    @property
    def _num_under_way(self) -> int:
        return len(self._under_way) + len(self._retries)

    def _idle_until(self, now: int) -> int | None:
        """Until when there is nothing to do but to wait; None when the engine has a step to make."""
        engine_idle_until = None
        if self._engine.has_work:
            engine_idle_until = self._engine.idle_until_ns
            if engine_idle_until is None or engine_idle_until <= now:
                return None
        times = (engine_idle_until, self._retries.due_at(), self._feed.due_at(now))
        return min(t for t in times if t is not None)

    def _send_due(self, now: int) -> None:
        while retry := self._retries.pop_due(now):
            self._send(retry)
        while due := self._feed.next_due(now, self._num_under_way):
            planned, phase, t_sched = due
            if phase == "window" and t_sched >= self._window.end_ns:
                phase = "cooldown"
            inflight = prepare(planned, phase, t_sched, self._temperature)
            if phase == "window":
                self._window_under_way += 1
                self._referee.sent(inflight)
            self._send(inflight)

    def _send(self, inflight: InFlight) -> None:
        now = self._engine.clock.now_ns()
        inflight.sent(now)
        try:
            self._engine.add_request(inflight.request)
        except RequestRefused as refusal:
            inflight.end("refused", now, error=str(refusal))
            self._record(inflight)
        except RequestShed as shed:
            inflight.shed(now, shed)
            self._retry_or_record(inflight, now, shed.retry_after_s)
        else:
            self._under_way[inflight.request.request_id] = inflight

    def _step(self) -> None:
        events, iteration = self._engine.step()
        if iteration is not None:
            self._iterations.append(iteration)
        under_way = self._under_way
        for request_id, token_ids, time_ns, finish_reason in events:
            inflight = under_way[request_id]
            if token_ids:  # once per token of the run: not worth a call of a method
                inflight.chunk_times.append(time_ns)
                inflight.chunk_tokens.append(len(token_ids))
            if finish_reason is None:
                continue
            inflight.finish(time_ns, finish_reason)
            del under_way[request_id]
            if inflight.status in _TURNED_AWAY:
                shed = inflight.request.shed
                retry_after_s = RETRY_AFTER_QUEUE_TIMEOUT_S if shed is None else shed.retry_after_s
                self._retry_or_record(inflight, time_ns, retry_after_s)
            else:
                self._record(inflight)

    def _retry_or_record(self, inflight: InFlight, turned_away_ns: int, retry_after_s: float) -> None:
        if inflight.attempts > self._plan.spec.retries:
            self._record(inflight)
        else:
            inflight.renew()
            self._retries.add(inflight, turned_away_ns + round(retry_after_s * NS_PER_S))

    def _record(self, inflight: InFlight) -> None:
        record = inflight.to_record(self._slo)
        self._records.append(record)
        assert record.t_end is not None
        self._feed.ended(record.t_end, turned_away=record.status in _TURNED_AWAY)
        if record.phase == "window":
            self._window_under_way -= 1
            self._referee.ended(record)

    def _reason_to_stop(self, now: int) -> str | None:
        if self._held:
            return None
        in_system = self._num_under_way
        last = self._iterations[-1] if self._iterations else None
        return self._referee.reason_to_stop(now, in_system, in_system + len(self._records), last)

    def _end_window(self, now: int) -> None:
        """What has been measured is enough: requests to come are load for those of the window that are under way."""
        # Whoever was scheduled up to this very moment has been sent.
        self._window = Window(self._window.start_ns, min(now + 1, self._window.end_ns))
        self._held = True

    def _finish(self, now: int, stopped_early: str | None, overdue: Status = "unfinished") -> DriveResult:
        """End what is under way. `overdue` is the status of the requests that the run was waiting for."""

        def end(inflight: InFlight, finish_reason: str | None, error: str | None) -> None:
            status = "unfinished" if inflight.phase == "cooldown" else overdue
            inflight.end(status, now, finish_reason=finish_reason, error=error)
            self._records.append(inflight.to_record(self._slo))

        for request_id in list(self._under_way):
            self._engine.abort(request_id)
            end(self._under_way.pop(request_id), "abort", None)
        for inflight in self._retries.drain():
            end(inflight, None, inflight.error)
        return self._result(now, stopped_early)

    def _result(self, now: int, stopped_early: str | None) -> DriveResult:
        start_ns, end_ns = self._window.start_ns, self._window.end_ns
        window = Window(start_ns, max(start_ns, min(end_ns, now)))
        requests = sorted(self._records, key=lambda r: r.index)
        # Of several engines the steps come in the order in which they end.
        iterations = sorted(self._iterations, key=attrgetter("t_start"))
        return DriveResult(requests, iterations, window, stopped_early)

    def _progress(self, now: int) -> Progress:
        return Progress(
            phase=self._plan.phase_at(now - self._start_ns),
            elapsed_s=(now - self._start_ns) / NS_PER_S,
            planned_s=(self._plan.warmup_ns + self._plan.window_ns) / NS_PER_S,
            ended=len(self._records),
            under_way=self._num_under_way,
        )
