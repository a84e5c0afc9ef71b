"""One request while it is under way, and the record it becomes."""

from dataclasses import dataclass, field, replace

from engine.errors import RequestShed
from engine.request import FinishReason, Request, RequestEvent, SamplingParams
from workloads.plan import RequestPlan
from workloads.records import TURNED_AWAY, Phase, RequestRecord, Status
from workloads.slo import Slo


@dataclass(slots=True, eq=False)
class InFlight:
    """A request from its scheduled arrival to its end. Times are nanoseconds of the engine's clock.

    Attributes:
        request: the engine's side of it, made anew for each attempt.
        t_send: set as it is handed to the engine for the first time.
        attempts: how often it was sent.
        status: None while it is under way, which it is too while it waits to be sent again.
        chunk_times, chunk_tokens: when tokens came, and how many at once.
        earlier_history: what was noted of the attempts before this one.
    """

    plan: RequestPlan
    phase: Phase
    t_sched: int
    request: Request
    t_send: int | None = None
    attempts: int = 0
    status: Status | None = None
    finish_reason: str | None = None
    error: str | None = None
    t_end: int | None = None
    chunk_times: list[int] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    earlier_history: list[RequestEvent] = field(default_factory=list)

    @property
    def t_first(self) -> int | None:
        """Time of the first chunk of tokens."""
        return self.chunk_times[0] if self.chunk_times else None

    def sent(self, now: int) -> None:
        """It is handed to the engine; the first time is the one that counts."""
        self.t_send = now if self.t_send is None else self.t_send
        self.attempts += 1

    def renew(self) -> None:
        """Take it back from its end, with the engine's request made anew to be sent once more.

        `error` goes on telling why it was turned away.
        """
        self.status = self.finish_reason = self.t_end = None
        self.earlier_history += self.request.history
        self.request = _engine_request(self.plan, self.t_sched, self.request.sampling, attempt=self.attempts)

    def finish(self, time_ns: int, finish_reason: str) -> None:
        """The engine ended it, for a reason of its own."""
        if finish_reason == FinishReason.QUEUE_TIMEOUT:
            error = "turned away: not admitted within queue_timeout"
            self._turn_away("queue_timeout", time_ns, "queue_timeout", error, str(finish_reason))
        elif self.request.shed is not None:
            self.shed(time_ns, self.request.shed)
        else:
            self.end("ok", time_ns, finish_reason=str(finish_reason))

    def shed(self, now: int, shed: RequestShed) -> None:
        """The engine turned it away at the door."""
        self._turn_away("shed", now, shed.limit, str(shed), None)

    def _turn_away(self, status: Status, t_end: int, limit: str, error: str, finish_reason: str | None) -> None:
        # The engine's own history ends before its answer does, and says nothing of a request that it never queued.
        self.request.history.append(RequestEvent(t_end, TURNED_AWAY, 0, detail=limit))
        self.end(status, t_end, finish_reason=finish_reason, error=error)

    def end(self, status: Status, t_end: int, *, finish_reason: str | None = None, error: str | None = None) -> None:
        """It left the engine, or never came in."""
        self.status, self.t_end = status, t_end
        self.finish_reason, self.error = finish_reason, error

    def to_record(self, slo: Slo | None) -> RequestRecord:
        """What is kept of it. It must have ended."""
        assert self.status is not None
        history = (*self.earlier_history, *self.request.history)
        record = RequestRecord(
            index=self.plan.index,
            request_id=self.request.request_id,
            phase=self.phase,
            status=self.status,
            finish_reason=self.finish_reason,
            error=self.error,
            t_sched=self.t_sched,
            t_send=self.t_send,
            t_admit=next((e.time_ns for e in history if e.kind == "admitted"), None),
            t_first=self.t_first,
            t_last=self.chunk_times[-1] if self.chunk_times else None,
            t_end=self.t_end,
            prompt_tokens=len(self.plan.prompt),
            max_tokens=self.plan.max_tokens,
            output_tokens=sum(self.chunk_tokens),
            first_chunk_tokens=self.chunk_tokens[0] if self.chunk_tokens else 0,
            cached_tokens=self.request.num_cached_tokens,
            preemptions=self.request.num_preemptions,
            recomputed_tokens=self.request.num_recomputed_tokens,
            preemptions_swap=self.request.num_swaps,
            priority=self.plan.priority,
            class_name=self.plan.class_name,
            attempts=self.attempts,
            chunk_times=tuple(self.chunk_times),
            chunk_tokens=tuple(self.chunk_tokens),
            history=history,
            replica=self.request.replica,
        )
        return record if slo is None else replace(record, good=slo.is_good(record))


def prepare(plan: RequestPlan, phase: Phase, t_sched: int, temperature: float) -> InFlight:
    """Make the engine's request of a planned one. It produces exactly `max_tokens`, whatever is sampled."""
    sampling = SamplingParams(max_tokens=plan.max_tokens, temperature=temperature, seed=plan.index, ignore_eos=True)
    return InFlight(plan, phase, t_sched, _engine_request(plan, t_sched, sampling, attempt=0))


def _engine_request(plan: RequestPlan, t_sched: int, sampling: SamplingParams, attempt: int) -> Request:
    return Request(
        request_id=f"req-{plan.index}",
        prompt_token_ids=plan.prompt_token_ids,
        sampling=sampling,
        priority=plan.priority,
        arrival_ns=t_sched,
        attempt=attempt,
    )
