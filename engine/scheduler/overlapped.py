"""Planning a step while the one before it is still under way.

The planner works on counts, and those are known in advance: a step under way will have computed its tokens, and each
request that samples will have one token more. So the counts go ahead, with `PENDING_TOKEN` where a token is not known
yet, and the planner above goes on unchanged. What it cannot know in advance is a stop token. Its request has then a
row in the step after it, too, which is for nothing.

Blocks change hands while steps that write to them are under way. That is right because an executor carries out its
steps in the order in which they were launched: whatever a former owner's row still writes, the next owner's writes
come after it, and a block is findable only when all it holds has been planned and is known.
"""

from engine.executor.base import StepResult
from engine.request import PENDING_TOKEN, FinishReason, Request, RequestStatus
from engine.scheduler.plan import StepPlan, TokenEvent
from engine.scheduler.scheduler import Scheduler


class OverlappedScheduler(Scheduler):
    """A scheduler that may be one step ahead: `schedule`, `advance`, `schedule`, `advance`, `finish_step` of the first.

    Invariant, beside the base's: only requests in a step under way have a `PENDING_TOKEN`, one for each such step.
    """

    def schedule(self) -> StepPlan:
        """See `Scheduler.schedule`. At most one step is under way."""
        # They have no step to come. Their blocks were kept until all they hold was known.
        for request in self._leaving.values():
            self.kv.free(request)
        return super().schedule()

    def advance(self, plan: StepPlan) -> None:
        """Go on as if a step that was launched were done. `finish_step` brings its tokens later, in the same order."""
        for request, computed, num_tokens, samples, _ in plan.scheduled:
            computed += num_tokens
            request.num_computed_tokens = computed
            request.max_computed_tokens = max(request.max_computed_tokens, computed)
            if samples:
                request.token_ids.append(PENDING_TOKEN)
                if request.num_output_tokens >= request.sampling.max_tokens:
                    self._leaving[request.request_id] = request
        if self._leaving:
            self.running = [r for r in self.running if r.request_id not in self._leaving]
        plan.is_ahead = True

    def finish_step(self, plan: StepPlan, result: StepResult) -> list[TokenEvent]:
        """See `Scheduler.finish_step`. Steps end in the order in which they were planned."""
        if not plan.is_ahead:
            return super().finish_step(plan, result)
        self._in_flight = [other for other in self._in_flight if other is not plan]
        now_ns = self._clock.now_ns()
        events = [TokenEvent(r.request_id, (), now_ns, r.finish_reason) for r in plan.timed_out]
        new_tokens = iter(result.token_ids)
        for request, computed, num_tokens, samples, _ in plan.scheduled:
            token = next(new_tokens) if samples else None
            if request.is_finished:
                self.kv.free(request)
                plan.wasted_rows += num_tokens
                continue
            if token is None:
                continue
            position = computed + num_tokens
            request.token_ids[position] = token
            num_output_tokens = position + 1 - request.num_prompt_tokens
            reason = request.reason_to_end(token, num_output_tokens, self._eos_token_ids)
            if reason is None:
                self.kv.token_known(request, position)
            else:
                self._end_ahead(request, reason)
                self.room.output_length.observe(request)
            events.append(TokenEvent(request.request_id, (token,), now_ns, reason))
        self.running = [r for r in self.running if not r.is_finished]
        self.room.admission.step_done((0, 0) if self._is_backlogged else self._batching.room(self.running))
        return events

    def abort(self, request_id: str) -> bool:
        """See `Scheduler.abort`."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        if request_id not in self._leaving:
            _drop_pending(request)
            return super().abort(request_id)
        self._end_ahead(request, FinishReason.ABORT)
        return True

    def _end_ahead(self, request: Request, reason: FinishReason) -> None:
        """End a request whose counts are ahead of its tokens; it may have been preempted since."""
        status = request.status
        self._leaving.pop(request.request_id, None)
        _drop_pending(request)
        self._end(request, reason)
        if status is not RequestStatus.RUNNING:
            self.room.leave(request, status)
        self.kv.free(request)


def _drop_pending(request: Request) -> None:
    while request.token_ids[-1] == PENDING_TOKEN:
        request.token_ids.pop()
