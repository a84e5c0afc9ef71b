"""The step planner: continuous batching under one token budget, with the semantics of vLLM's V1 scheduler.

There is no prefill phase and no decode phase. A request has known tokens and computed tokens; every step lets its
computed count catch up by as much as budget, seats and blocks allow, and it yields a token when it has caught up.
"""

from engine.clock import Clock
from engine.config import SchedulerConfig
from engine.errors import RequestRefused, UserError
from engine.executor.base import StepResult
from engine.kv_cache.manager import KVCacheManager
from engine.request import FinishReason, Request, RequestEvent, RequestStatus
from engine.scheduler.plan import ScheduledRequest, StepPlan, TokenEvent
from engine.scheduler.waiting_queue import QUEUES, WaitingQueue


class Scheduler:
    """Plans steps and takes in their results.

    Invariant (`check_integrity`): a live request is in `running` (with at most `max_num_seqs` of them) or waits,
    never both; only running requests hold blocks, enough for their computed tokens.

    Args:
        config: seats, token budget, chunk limit, policy.
        kv: blocks and the prefix cache.
        clock: stamps the requests' histories and the token events.
        max_model_len: longest request in tokens.
        eos_token_ids: tokens that end a request, unless it ignores them.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        clock: Clock,
        *,
        max_model_len: int,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        self.config = config
        self.kv = kv
        self.running: list[Request] = []
        self.waiting: WaitingQueue = QUEUES[config.policy]()
        self._requests: dict[str, Request] = {}
        self._clock = clock
        self._max_model_len = max_model_len
        self._eos_token_ids = frozenset(eos_token_ids)
        self._num_arrived = 0
        self._step_in_flight: StepPlan | None = None

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RequestRefused: it can never fit into the KV pool or the model's length.
            UserError: its id belongs to a live request, or it has been here before.
        """
        if request.status is not RequestStatus.WAITING or request.history:
            raise UserError(f"request_id={request.request_id!r} has been queued before: make a new Request")
        self._refuse_if_hopeless(request)
        if request.request_id in self._requests:
            raise UserError(f"request_id={request.request_id!r} belongs to a request that has not ended yet")
        request.sequence_number = self._num_arrived
        self._num_arrived += 1
        request.history.append(RequestEvent(self._clock.now_ns(), "queued", request.num_prompt_tokens))
        self._requests[request.request_id] = request
        self.waiting.push(request)

    def _refuse_if_hopeless(self, request: Request) -> None:
        asked = request.num_prompt_tokens + request.sampling.max_tokens
        ask = f"{request.num_prompt_tokens} prompt tokens and max_tokens={request.sampling.max_tokens}"
        if asked > self._max_model_len:
            raise RequestRefused(f"{ask} exceed max_model_len={self._max_model_len}")
        # The last output token is handed out, never computed, so it needs no room.
        pool_tokens = self.kv.pool.num_blocks * self.kv.block_size
        if asked - 1 > pool_tokens:
            raise RequestRefused(f"{ask} can never fit into a KV cache of {pool_tokens} tokens")

    def abort(self, request_id: str) -> bool:
        """End a request now, waiting, running or in the step in flight. False when there is no such live request."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            in_flight = self._step_in_flight
            if in_flight is not None and any(s.request is request for s in in_flight.scheduled):
                # The executor still writes to its blocks; finish_step gives them back.
                self._end(request, FinishReason.ABORT)
                return True
            self._end(request, FinishReason.ABORT)
            self.kv.free(request)
        else:
            self._end(request, FinishReason.ABORT)
            self.waiting.discard(request)
        return True

    def schedule(self) -> StepPlan:
        """Plan one step: running requests first, then waiting ones, until budget, seats or blocks run out."""
        plan = StepPlan()
        now_ns = self._clock.now_ns()
        budget = self._schedule_running(plan, now_ns)
        # A step that had to take blocks away has none to give to newcomers.
        if not plan.preempted:
            self._schedule_waiting(plan, budget, now_ns)
        plan.num_running = len(self.running)
        plan.num_waiting = len(self.waiting)
        plan.kv_blocks_used = self.kv.pool.num_used
        self._step_in_flight = plan
        return plan

    def _chunk_limit(self) -> int:
        """Most tokens of one request in this step. A request that is alone has nobody to make room for."""
        limit = self.config.chunk_size
        return limit if limit and len(self._requests) > 1 else self.config.max_num_batched_tokens

    def _schedule_running(self, plan: StepPlan, now_ns: int) -> int:
        """Plan the running requests in order of admission. Returns what is left of the token budget."""
        budget = self.config.max_num_batched_tokens
        chunk_limit = self._chunk_limit()
        running = self.running
        index = 0
        while index < len(running) and budget > 0:
            request = running[index]
            num_tokens = min(request.num_tokens - request.num_computed_tokens, chunk_limit, budget)
            has_room = self.kv.extend(request, num_tokens)
            while not has_room:
                victim = self._choose_victim()
                position = running.index(victim)
                planned = position < index
                if planned:
                    budget += self._take_out(plan, victim)
                    index -= 1
                self._preempt(victim, position, plan, now_ns)
                if victim is request:
                    break
                has_room = self.kv.extend(request, num_tokens)
            if not has_room:  # it preempted itself, and the next request has taken its place in the list
                continue
            self._plan(plan, request, num_tokens, now_ns)
            budget -= num_tokens
            index += 1
        return budget

    def _schedule_waiting(self, plan: StepPlan, budget: int, now_ns: int) -> None:
        """Admit waiting requests in policy order; the first that does not fit blocks those behind it."""
        chunk_limit = self._chunk_limit()
        while budget > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting.peek()
            if request is None:
                return
            prefix = self.kv.find_prefix(request)
            missing = request.num_tokens - len(prefix) * self.kv.block_size
            num_tokens = min(missing, chunk_limit, budget)
            if not self.kv.admit(request, prefix, num_tokens):
                return
            self.waiting.pop()
            self.running.append(request)
            request.status = RequestStatus.RUNNING
            cached = request.num_computed_tokens
            if request.num_preemptions == 0:
                request.num_cached_tokens = cached
            plan.cached_tokens += cached
            request.history.append(RequestEvent(now_ns, "admitted", cached, len(request.block_table)))
            self._plan(plan, request, num_tokens, now_ns)
            budget -= num_tokens

    def _plan(self, plan: StepPlan, request: Request, num_tokens: int, now_ns: int) -> None:
        start = request.num_computed_tokens
        end = start + num_tokens
        known = len(request.token_ids)
        is_decode = start == known - 1 and known > len(request.prompt_token_ids)
        plan.scheduled.append(ScheduledRequest(request, start, num_tokens, end == known, is_decode))
        if start < request.max_computed_tokens:
            again = min(end, request.max_computed_tokens) - start
            request.num_recomputed_tokens += again
            plan.recomputed_tokens += again
        if not is_decode:
            request.history.append(RequestEvent(now_ns, "chunk", num_tokens, len(request.block_table)))

    def _choose_victim(self) -> Request:
        if self.config.policy == "priority":
            return max(self.running, key=lambda r: (r.priority, r.sequence_number))
        return self.running[-1]

    def _take_out(self, plan: StepPlan, victim: Request) -> int:
        """Undo the plan of a victim that already had a share of this step. Returns its tokens."""
        position = next(i for i, s in enumerate(plan.scheduled) if s.request is victim)
        share = plan.scheduled.pop(position)
        again = max(0, min(share.num_computed + share.num_tokens, victim.max_computed_tokens) - share.num_computed)
        victim.num_recomputed_tokens -= again
        plan.recomputed_tokens -= again
        if not share.is_decode:
            victim.history.pop()
        return share.num_tokens

    def _preempt(self, victim: Request, position: int, plan: StepPlan, now_ns: int) -> None:
        """Take the blocks of the running request at `position`; it will compute everything again."""
        del self.running[position]
        lost = RequestEvent(now_ns, "preempted", victim.num_computed_tokens, len(victim.block_table))
        victim.history.append(lost)
        self.kv.free(victim)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.status = RequestStatus.PREEMPTED
        self.waiting.push_preempted(victim)
        plan.preempted.append(victim)

    def finish_step(self, plan: StepPlan, result: StepResult) -> list[TokenEvent]:
        """Take in what a step produced: computed counts, new tokens, requests that ended.

        Returns one event per new token, in the plan's order.
        """
        self._step_in_flight = None
        now_ns = self._clock.now_ns()
        new_tokens = iter(result.token_ids)
        events = []
        ended = False
        for share in plan.scheduled:
            request = share.request
            token = next(new_tokens) if share.samples else None
            request.num_computed_tokens = share.num_computed + share.num_tokens
            if request.num_computed_tokens > request.max_computed_tokens:
                request.max_computed_tokens = request.num_computed_tokens
            if request.status is RequestStatus.FINISHED:  # aborted while the step ran
                self.kv.free(request)
                continue
            if token is None:
                continue
            request.token_ids.append(token)
            reason = self._finish_reason(request, token)
            if reason is not None:
                self._end(request, reason)
                self.kv.free(request)
                ended = True
            events.append(TokenEvent(request.request_id, (token,), now_ns, reason))
        if ended:
            self.running = [r for r in self.running if r.status is RequestStatus.RUNNING]
        return events

    def _finish_reason(self, request: Request, token: int) -> FinishReason | None:
        sampling = request.sampling
        if not sampling.ignore_eos and token in self._eos_token_ids:
            return FinishReason.STOP
        if sampling.stop_token_ids and token in sampling.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if request.num_output_tokens >= sampling.max_tokens else None

    def _end(self, request: Request, reason: FinishReason) -> None:
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        event = RequestEvent(
            self._clock.now_ns(), "finished", request.num_output_tokens, len(request.block_table), reason
        )
        request.history.append(event)
        del self._requests[request.request_id]

    def check_integrity(self) -> None:
        """Check the invariants, those of the pool included. For tests and debugging.

        Raises:
            AssertionError: with what is wrong.
        """
        assert len(self.running) <= self.config.max_num_seqs, f"{len(self.running)} running requests"
        live = list(self._requests.values())
        running = [r for r in live if r.status is RequestStatus.RUNNING]
        assert {id(r) for r in running} == {id(r) for r in self.running}, "running list differs from the statuses"
        assert len(live) - len(running) == len(self.waiting), "waiting count differs from the statuses"
        for request in live:
            assert 0 <= request.num_computed_tokens <= request.num_tokens, request
            room = len(request.block_table) * self.kv.block_size
            assert room >= request.num_computed_tokens, f"{request.request_id} computed more than it has room for"
            assert request in running or not request.block_table, f"{request.request_id} waits but holds blocks"
        held = [s.request for s in self._step_in_flight.scheduled] if self._step_in_flight else []
        self.kv.check_integrity({id(r): r for r in [*live, *held]}.values())
