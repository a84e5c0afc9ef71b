"""The step planner: continuous batching under one token budget, with the semantics of vLLM's V1 scheduler.

There is no prefill phase and no decode phase. A request has known tokens and computed tokens; every step lets its
computed count catch up by as much as budget, seats and blocks allow, and it yields a token when it has caught up.
"""

from dataclasses import replace

from engine.clock import Clock
from engine.config import SchedulerConfig
from engine.errors import UserError
from engine.executor.base import StepResult
from engine.kv_cache.manager import KVCacheManager
from engine.request import FinishReason, Request, RequestEvent, RequestStatus
from engine.scheduler.admission import require_fit, require_new
from engine.scheduler.batching import BATCHING, Phase, phase_of
from engine.scheduler.plan import ScheduledRequest, StepPlan, TokenEvent, WaitCause
from engine.scheduler.preemption import Preemption, PreemptionCost
from engine.scheduler.waiting_room import WaitingRoom


class Scheduler:
    """Plans steps and takes in their results.

    Invariant (`check_integrity`): a live request is in `running` (with at most `max_num_seqs` of them) or in the
    waiting room, never both; only running requests hold blocks, and only swapped ones host blocks, enough for their
    computed tokens.

    Args:
        config: seats, token budget, policy, batching mode, limits of the queue, preemption.
        kv: blocks, host blocks and the prefix cache.
        clock: stamps the requests' histories and the token events.
        max_model_len: longest request in tokens.
        eos_token_ids: tokens that end a request, unless it ignores them.
        preemption_cost: what `preemption_mode=auto` goes by.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        clock: Clock,
        *,
        max_model_len: int,
        eos_token_ids: tuple[int, ...] = (),
        preemption_cost: PreemptionCost | None = None,
    ) -> None:
        self.config = config
        self.kv = kv
        self.running: list[Request] = []
        self._batching = BATCHING[config.batching](config)
        self.room = WaitingRoom(config, max_model_len, self._batching.room([]))
        self.preemption_cost = preemption_cost or PreemptionCost(0, None)
        self._requests: dict[str, Request] = {}
        self._preemption = Preemption(config, kv, self.room, self.preemption_cost)
        self._clock = clock
        self._max_model_len = max_model_len
        self._eos_token_ids = frozenset(eos_token_ids)
        self._num_arrived = 0
        self._in_flight: list[StepPlan] = []
        self._leaving: dict[str, Request] = {}  # filled by `OverlappedScheduler`: their last tokens are on their way
        # What the step before left: a queue that is not cleared at every step is a backlog.
        self._is_backlogged = False

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    @property
    def idle_until_ns(self) -> int | None:
        """Before this time no step can do anything unless requests arrive; None when one can."""
        room = self.room
        if self.running or room.swapped or not room.waiting:
            return None
        all_are_new = len(room.waiting) == room.admission.num_newcomers
        ready_ns = self._batching.ready_at_ns(len(room.waiting), room.admission.oldest_ns if all_are_new else None)
        if ready_ns is None or ready_ns <= self._clock.now_ns():
            return None
        timeout_ns = room.admission.next_timeout_ns
        return ready_ns if timeout_ns is None else min(ready_ns, timeout_ns)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RequestRefused: it can never fit into the KV pool or the model's length.
            RequestShed: too many wait already.
            UserError: its id belongs to a live request, or it has been here before.
        """
        require_new(request)
        require_fit(request, self._max_model_len, self.kv.pool.num_blocks * self.kv.block_size)
        if request.request_id in self._requests:
            raise UserError(f"request_id={request.request_id!r} belongs to a request that has not ended yet")
        self.room.admission.check(request)
        now_ns = self._clock.now_ns()
        if request.arrival_ns is None:
            request.arrival_ns = now_ns
        request.sequence_number = self._num_arrived
        self._num_arrived += 1
        request.history.append(RequestEvent(now_ns, "queued", request.num_prompt_tokens))
        self._requests[request.request_id] = request
        self.room.enter(request)
        if self.idle_until_ns is not None:
            request.history[0] = replace(request.history[0], detail="batch")

    def abort(self, request_id: str) -> bool:
        """End a request now, wherever it is, in the step in flight too. False when there is no such live request."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self._end(request, FinishReason.ABORT)
            # The executor still writes to the blocks of a step in flight; finish_step gives them back.
            if all(share.request is not request for plan in self._in_flight for share in plan.scheduled):
                self.kv.free(request)
        else:
            self._end_waiting(request, FinishReason.ABORT)
        return True

    def _end_waiting(self, request: Request, reason: FinishReason) -> None:
        status = request.status
        self._end(request, reason)
        self.room.leave(request, status)
        self.kv.free(request)

    def schedule(self) -> StepPlan:
        """Plan one step: running requests first, then swapped ones, then waiting ones, until budget, seats or blocks
        run out."""
        plan = StepPlan(time_ns=self._clock.now_ns())
        while (expired := self.room.admission.next_expired(plan.time_ns)) is not None:
            self._end_waiting(expired, FinishReason.QUEUE_TIMEOUT)
            plan.timed_out.append(expired)
        room = self.room
        is_ready = self.idle_until_ns is None
        phase = self._batching.begin_step(self.running, room.swapped.peek(), len(room.waiting), is_ready)
        budget = self._schedule_running(plan, phase)
        # A step that had to take blocks away has none to give to newcomers.
        cause = WaitCause.BLOCKS if plan.preempted else self._admit(plan, phase, budget)
        room.admission.step_planned(plan.time_ns, was_backlogged=self._is_backlogged)
        if not plan.scheduled and self.running:
            # No room for the rest of the batch: those that are in go on without it.
            self._batching.close()
            self._schedule_running(plan, None)
        plan.num_running = len(self.running)
        plan.num_waiting = len(room)
        plan.kv_blocks_used = self.kv.pool.num_used
        head = room.head
        self._is_backlogged = head is not None
        if head is not None:
            plan.wait_cause = cause
            plan.blocked_request = head.request_id if cause is WaitCause.BLOCKS else None
        self._in_flight.append(plan)
        return plan

    def _chunk_limit(self) -> int:
        """Most tokens of one request in this step. A request that is alone has nobody to make room for."""
        limit = self.config.chunk_size
        return limit if limit and len(self._requests) - len(self._leaving) > 1 else self.config.max_num_batched_tokens

    def _schedule_running(self, plan: StepPlan, phase: Phase | None) -> int:
        """Plan the running requests in order of admission. Returns what is left of the token budget."""
        budget, chunk_limit = self.config.max_num_batched_tokens, self._chunk_limit()
        new_share = ScheduledRequest._make  # half the cost of the constructor, as is the one of the events
        running, scheduled, block_size = self.running, plan.scheduled, self.kv.block_size
        index = 0
        while index < len(running) and budget > 0:
            request = running[index]
            if phase is not None and phase_of(request) is not phase:
                index += 1
                continue
            computed = request.num_computed_tokens
            num_tokens = len(request.token_ids) - computed
            inside = computed % block_size and (computed + 1) % block_size
            is_decode = num_tokens == 1 and computed >= len(request.prompt_token_ids)
            if is_decode and computed >= request.max_computed_tokens and (inside or self.kv.extend(request, 1)):
                # Nearly all of nearly every step, and mostly neither the first token of its block nor the last.
                scheduled.append(new_share((request, computed, 1, True, True)))
                budget -= 1
                index += 1
                continue
            num_tokens = min(num_tokens, chunk_limit, budget)
            has_room = self.kv.extend(request, num_tokens)
            while not has_room:
                victim = self._preemption.choose(running)
                position = running.index(victim)
                del running[position]
                index -= position < index
                budget += plan.take_out(victim)
                self._preemption.evict(victim, request, plan)
                if victim is request:
                    break
                has_room = self.kv.extend(request, num_tokens)
            if not has_room:  # it preempted itself, and the next request has taken its place in the list
                continue
            plan.add(request, num_tokens)
            budget -= num_tokens
            index += 1
        return budget

    def _admit(self, plan: StepPlan, phase: Phase | None, budget: int) -> WaitCause | None:
        """Admit swapped requests, then waiting ones, in policy order; the first that does not fit blocks those behind
        it. Returns why it ended, None when nobody is left."""
        chunk_limit = self._chunk_limit()
        cause = None
        while (head := self.room.head) is not None:
            cause = self._obstacle(head, phase, budget)
            if cause is not None:
                break
            admit = self._swap_in if head.status is RequestStatus.SWAPPED else self._start
            if not admit(plan, head, min(chunk_limit, budget)):
                cause = WaitCause.BLOCKS
                self._batching.close()
                break
            budget -= plan.scheduled[-1].num_tokens
        return cause

    def _obstacle(self, head: Request, phase: Phase | None, budget: int) -> WaitCause | None:
        """What keeps the head out, whatever blocks there are."""
        if head.status is RequestStatus.SWAPPED:
            is_closed = phase is not None and phase_of(head) is not phase
        else:
            is_closed = not self._batching.may_admit
        if is_closed:
            return WaitCause.BATCH
        if len(self.running) >= self.config.max_num_seqs:
            return WaitCause.SEATS
        return WaitCause.BUDGET if budget <= 0 else None

    def _start(self, plan: StepPlan, head: Request, most_tokens: int) -> bool:
        """Admit a waiting request, if there is room for it."""
        prefix = self.kv.find_prefix(head)
        num_tokens = min(head.num_tokens - len(prefix) * self.kv.block_size, most_tokens)
        if not self.kv.admit(head, prefix, num_tokens):
            return False
        if not head.num_preemptions:
            head.num_cached_tokens = head.num_computed_tokens
        plan.cached_tokens += head.num_computed_tokens
        self._batching.admitted()
        self._run(plan, head, num_tokens)
        return True

    def _swap_in(self, plan: StepPlan, head: Request, most_tokens: int) -> bool:
        """Bring back a swapped request, if there is room for it."""
        copies = self.kv.swap_in(head, most_tokens)
        if copies is None:
            return False
        plan.swap_in += copies
        self._run(plan, head, min(head.num_tokens - head.num_computed_tokens, most_tokens), "swap")
        return True

    def _run(self, plan: StepPlan, head: Request, num_tokens: int, how: str = "") -> None:
        self.room.seat(head)
        self.running.append(head)
        blocks = len(head.block_table)
        head.history.append(RequestEvent(plan.time_ns, "admitted", head.num_computed_tokens, blocks, how))
        plan.add(head, num_tokens)

    def finish_step(self, plan: StepPlan, result: StepResult) -> list[TokenEvent]:
        """Take in what a step produced: computed counts, new tokens, requests that ended.

        Returns one event per request that waited too long, then one per new token, in the plan's order.
        """
        self._in_flight = [other for other in self._in_flight if other is not plan]
        now_ns = self._clock.now_ns()
        events = [TokenEvent(r.request_id, (), now_ns, r.finish_reason) for r in plan.timed_out]
        new_tokens, ended = iter(result.token_ids), False
        finished, eos_token_ids, new_event = RequestStatus.FINISHED, self._eos_token_ids, TokenEvent._make
        for request, computed, num_tokens, samples, _ in plan.scheduled:
            token = next(new_tokens) if samples else None
            computed += num_tokens
            request.num_computed_tokens = computed
            if computed > request.max_computed_tokens:
                request.max_computed_tokens = computed
            if request.status is finished:  # aborted while the step ran
                self.kv.free(request)
                plan.wasted_rows += num_tokens
                continue
            if token is None:
                continue
            request.token_ids.append(token)
            reason = request.reason_to_end(token, request.num_output_tokens, eos_token_ids)
            if reason is not None:
                self._end(request, reason)
                self.kv.free(request)
                self.room.output_length.observe(request)
                ended = True
            events.append(new_event((request.request_id, (token,), now_ns, reason)))
        if ended:
            self.running = [r for r in self.running if r.status is RequestStatus.RUNNING]
        self.room.admission.step_done((0, 0) if self._is_backlogged else self._batching.room(self.running))
        return events

    def _end(self, request: Request, reason: FinishReason) -> None:
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        event = RequestEvent(
            self._clock.now_ns(), "finished", request.num_output_tokens, len(request.block_table), reason
        )
        request.history.append(event)
        del self._requests[request.request_id]
        if not self._requests:
            # What follows is no longer the time of a backlog, and whoever comes finds all seats free.
            self._is_backlogged = False
            self.room.admission.step_done(self._batching.room([]))

    def check_integrity(self) -> None:
        """Check the invariants, those of the pools included. For tests and debugging.

        Raises:
            AssertionError: with what is wrong.
        """
        assert len(self.running) <= self.config.max_num_seqs, f"{len(self.running)} running requests"
        live = [r for r in self._requests.values() if r.request_id not in self._leaving]
        running = [r for r in live if r.status is RequestStatus.RUNNING]
        swapped = [r for r in live if r.status is RequestStatus.SWAPPED]
        assert {id(r) for r in running} == {id(r) for r in self.running}, "running list differs from the statuses"
        assert len(swapped) == len(self.room.swapped), "swapped count differs from the statuses"
        assert len(live) - len(running) - len(swapped) == len(self.room.waiting), "waiting count differs from the rest"
        for request in live:
            name, computed = request.request_id, request.num_computed_tokens
            assert 0 <= computed <= request.num_tokens, request
            is_swapped = request.status is RequestStatus.SWAPPED
            table = request.swap_table if is_swapped else request.block_table
            assert len(table) * self.kv.block_size >= computed, f"{name} computed more than it has room for"
            assert request.status is RequestStatus.RUNNING or not request.block_table, f"{name} waits but holds blocks"
            assert is_swapped or not request.swap_table, f"{name} is not swapped but holds host blocks"
        held = [share.request for plan in self._in_flight for share in plan.scheduled]
        self.kv.check_integrity({id(r): r for r in [*live, *held]}.values())
