"""The loop: requests in, steps, tokens out. Single-threaded; every call happens between two steps.

Where the executor overlaps steps, a call of `step` launches the next one before it waits for the tokens of the one
under way, so that the device finds work whenever it is done. Whoever calls it sees no difference, but that requests
which come between two calls find one step launched already.
"""

from engine.clock import Clock
from engine.config import CacheConfig, SchedulerConfig
from engine.errors import SwapSpaceTooSmall
from engine.executor.base import Executor, MemoryProfile, OverlappingExecutor, StepResult, as_overlapping
from engine.host_phases import HostPhases
from engine.kv_cache.manager import KVCacheManager
from engine.kv_cache.sizing import GIB, KVBudget
from engine.request import Request
from engine.scheduler.admission import require_known_tokens
from engine.scheduler.overlapped import OverlappedScheduler
from engine.scheduler.plan import StepPlan, TokenEvent
from engine.scheduler.preemption import PreemptionCost
from engine.steps_under_way import StepsUnderWay, StepUnderWay
from engine.trace import IterationRecord, Phase


class Engine:
    """A continuous-batching engine over any executor.

    Args:
        executor: carries out steps; its clock is the engine's.
        scheduler: seats, token budget, policy, batching mode, limits of the queue, preemption.
        cache: memory share, block size, prefix caching, swap space.

    Raises:
        KVCacheTooSmall: the memory left cannot hold one request of `max_model_len` tokens.
        SwapSpaceTooSmall: preemption may swap, and the swap space holds not one block.

    Example:
        >>> engine = Engine(executor, SchedulerConfig(max_num_seqs=8), CacheConfig())
        >>> engine.add_request(Request("a", [1, 2, 3], SamplingParams(max_tokens=4)))
        >>> while engine.has_work:
        ...     events, record = engine.step()
    """

    def __init__(self, executor: Executor, scheduler: SchedulerConfig, cache: CacheConfig) -> None:
        self.executor = executor
        self.scheduler_config = scheduler
        self.cache_config = cache
        self.kv_budget: KVBudget | None = None
        self.num_blocks = 0
        self.num_swap_blocks = 0
        self._iteration = 0
        self._last_execute_end_ns: int | None = None
        self._last_end_ns = 0
        self.phases: HostPhases = getattr(executor, "phases", None) or HostPhases()
        self._overlapping = as_overlapping(executor)
        self._under_way = StepsUnderWay()
        self._configure(scheduler, cache)

    @property
    def clock(self) -> Clock:
        return self.executor.clock

    @property
    def has_work(self) -> bool:
        """Any request that has not ended, or a step under way."""
        return self.scheduler.has_work or len(self._under_way) > 0

    @property
    def idle_until_ns(self) -> int | None:
        """Before this time no step can do anything unless requests arrive; None when one can, or nothing is there.

        A batch that waits to grow makes such moments. Whoever brings the requests should sleep through them; a step
        that is asked for all the same does.
        """
        return None if self._under_way else self.scheduler.idle_until_ns

    def add_request(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RequestRefused: a token outside the vocabulary, or what `Scheduler.add` refuses.
            RequestShed: too many wait already.
        """
        require_known_tokens(request, self.executor.vocab_size)
        self.scheduler.add(request)

    def abort(self, request_id: str) -> bool:
        """End a request now and take its blocks back. False when there is no such live request."""
        return self.scheduler.abort(request_id)

    def step(self) -> tuple[list[TokenEvent], IterationRecord]:
        """Run one iteration.

        Returns:
            One event per new token, and the iteration's record.

        Raises:
            OutOfDeviceMemory: the device's memory did not suffice. `reset` makes the engine usable again.
        """
        clock = self.clock
        idle_until_ns = self.idle_until_ns
        if idle_until_ns is not None:
            clock.sleep_until(idle_until_ns)
        if self._overlapping is not None:
            return self._step_ahead(self._overlapping)
        t_start = clock.now_ns()
        plan = self._plan()
        t_execute = clock.now_ns()
        result = self.executor.execute(plan) if plan.has_work else StepResult([])
        return self._take_in(plan, result, t_start, t_execute)

    def _step_ahead(self, executor: OverlappingExecutor) -> tuple[list[TokenEvent], IterationRecord]:
        """Launch what can be, then take in the oldest step under way."""
        clock, early_events = self.clock, []
        while self._under_way.has_room:
            t_start = clock.now_ns()
            plan = self._plan()
            t_execute = clock.now_ns()
            if not plan.has_work:
                if not self._under_way:
                    return self._take_in(plan, StepResult([]), t_start, t_execute)
                # Nothing to launch until the step under way is done; those who waited too long are told now.
                early_events = self.scheduler.finish_step(plan, StepResult([]))
                break
            self._under_way.append(StepUnderWay(plan, executor.launch(plan), t_start, t_execute))
            self.scheduler.advance(plan)
        self.phases.iteration = self._iteration
        step, result = self._under_way.wait()
        events, record = self._take_in(step.plan, result, step.t_start, step.t_execute)
        return early_events + events, record

    def _plan(self) -> StepPlan:
        self.phases.iteration = self._iteration + len(self._under_way)
        with self.phases.during(Phase.SCHEDULE):
            return self.scheduler.schedule()

    def _take_in(
        self, plan: StepPlan, result: StepResult, t_start: int, t_execute: int
    ) -> tuple[list[TokenEvent], IterationRecord]:
        """Take in what a step produced, and write its record.

        Args:
            t_start, t_execute: before it was planned, and before it was executed or launched.
        """
        t_executed = self.clock.now_ns()
        last_ns = self._last_execute_end_ns
        # Without overlap a step begins after the end of the one before it, so these change nothing.
        t_begun = t_execute if last_ns is None else max(t_execute, last_ns)
        self.scheduler.preemption_cost.observe(plan, t_executed - t_begun)
        with self.phases.during(Phase.SCHEDULE):
            events = self.scheduler.finish_step(plan, result)
        t_end = self.clock.now_ns()
        gap_ns = t_begun - last_ns if last_ns is not None and result.gap_ns is None else result.gap_ns
        record = self._record(
            plan,
            result,
            times=(max(t_start, self._last_end_ns), t_end),
            schedule_time_ns=(t_execute - t_start) + (t_end - t_executed),
            execute_time_ns=t_executed - t_begun,
            gap_ns=0 if last_ns is None or gap_ns is None else gap_ns,
        )
        self._last_execute_end_ns, self._last_end_ns = t_executed, t_end
        self._iteration += 1
        return events, record

    def _record(
        self,
        plan: StepPlan,
        result: StepResult,
        *,
        times: tuple[int, int],
        schedule_time_ns: int,
        execute_time_ns: int,
        gap_ns: int,
    ) -> IterationRecord:
        t_start, t_end = times
        work = plan.work()
        swapped_in, swapped_out = len(plan.swap_in), len(plan.swap_out)
        return IterationRecord(
            iteration=self._iteration,
            t_start=t_start,
            t_end=t_end,
            prefill_tokens=work.prefill_tokens,
            decode_tokens=work.decode_tokens,
            prefill_seqs=work.requests - work.decode_tokens,
            decode_seqs=work.decode_tokens,
            context_tokens=work.context_tokens,
            attended_tokens=work.attended_tokens,
            cached_tokens=plan.cached_tokens,
            running=plan.num_running,
            waiting=plan.num_waiting,
            kv_blocks_used=plan.kv_blocks_used,
            kv_blocks_total=self.num_blocks,
            preemptions_recompute=len(plan.preempted) - plan.preemptions_swap,
            preemptions_swap=plan.preemptions_swap,
            swapped_in_blocks=swapped_in,
            swapped_out_blocks=swapped_out,
            swapped_in_bytes=swapped_in * self._bytes_per_block,
            swapped_out_bytes=swapped_out * self._bytes_per_block,
            recomputed_tokens=plan.recomputed_tokens,
            schedule_time_ns=schedule_time_ns,
            execute_time_ns=execute_time_ns,
            device_time_ns=result.device_time_ns,
            gap_ns=gap_ns,
            wait_cause=plan.wait_cause,
            blocked_request=plan.blocked_request,
            wasted_rows=plan.wasted_rows,
        )

    def reconfigure(self, *, scheduler: SchedulerConfig | None = None, cache: CacheConfig | None = None) -> None:
        """Change settings without loading the weights again; prefix cache and iteration count start afresh.

        The KV tensors are allocated anew only when the number or size of the blocks changes. When the new settings
        cannot work, the old ones stay.

        Raises:
            RuntimeError: the engine has work.
            KVCacheTooSmall: the memory left cannot hold one request of `max_model_len` tokens.
            SwapSpaceTooSmall: preemption may swap, and the swap space holds not one block.
            OutOfDeviceMemory: the device, or the host, has less than the settings ask for.
        """
        if self.scheduler.has_work:
            raise RuntimeError("reconfigure needs an idle engine: finish or abort its requests first")
        self._under_way.give_up()
        self._configure(scheduler or self.scheduler_config, cache or self.cache_config)

    def reset(self) -> None:
        """Drop every request, whatever state a failed step left, and the prefix cache; count iterations afresh.

        Settings stay. After a step that raised, this is what makes the engine usable again.
        """
        self._under_way.give_up()
        self._make_scheduler()

    def _configure(self, scheduler: SchedulerConfig, cache: CacheConfig) -> None:
        try:
            budget, num_blocks = self._size_cache(scheduler, cache)
            num_swap_blocks = self._size_swap_space(scheduler, cache)
            self.executor.allocate_kv(num_blocks, cache.block_size, num_swap_blocks)
        except Exception:
            if self.num_blocks:
                self.executor.allocate_kv(self.num_blocks, self.cache_config.block_size, self.num_swap_blocks)
                # The cache may be a new one: nothing of the old one can be found in it.
                self._make_scheduler()
            raise
        self.scheduler_config, self.cache_config = scheduler, cache
        self.kv_budget, self.num_blocks, self.num_swap_blocks = budget, num_blocks, num_swap_blocks
        self._make_scheduler()

    def _size_swap_space(self, scheduler: SchedulerConfig, cache: CacheConfig) -> int:
        if scheduler.preemption_mode == "recompute" or not cache.swap_space:
            return 0
        bytes_per_block = self.executor.kv_bytes_per_block(cache.block_size)
        if cache.swap_space < bytes_per_block:
            raise SwapSpaceTooSmall(
                f"swap_space={cache.swap_space} holds not one block of {bytes_per_block} bytes, but "
                f"preemption_mode={scheduler.preemption_mode} needs it: give more, such as {4 * GIB} (4 GiB)"
            )
        return cache.swap_space // bytes_per_block

    def _size_cache(self, scheduler: SchedulerConfig, cache: CacheConfig) -> tuple[KVBudget | None, int]:
        if cache.num_gpu_blocks_override is not None:
            return None, cache.num_gpu_blocks_override
        profile = self.executor.profile_memory(scheduler.max_num_batched_tokens, scheduler.max_num_seqs)
        budget = kv_budget(profile, cache, self.executor.kv_bytes_per_block(cache.block_size))
        return budget, budget.require(self.executor.max_model_len, cache.block_size)

    def _make_scheduler(self) -> None:
        kv = KVCacheManager(
            self.num_blocks,
            self.cache_config.block_size,
            enable_prefix_caching=self.cache_config.enable_prefix_caching,
            num_swap_blocks=self.num_swap_blocks,
        )
        self._bytes_per_block = self.executor.kv_bytes_per_block(self.cache_config.block_size)
        link_bytes_per_s = self.executor.host_link_bytes_per_s if self.num_swap_blocks else None
        self.scheduler = OverlappedScheduler(
            self.scheduler_config,
            kv,
            self.clock,
            max_model_len=self.executor.max_model_len,
            eos_token_ids=self.executor.eos_token_ids,
            preemption_cost=PreemptionCost(self._bytes_per_block, link_bytes_per_s),
        )
        self._iteration = 0
        self._last_execute_end_ns = None
        self._last_end_ns = 0


def kv_budget(profile: MemoryProfile, cache: CacheConfig, bytes_per_block: int) -> KVBudget:
    """What a memory profile leaves for the KV cache under these settings."""
    return KVBudget(
        total=profile.total,
        gpu_memory_utilization=cache.gpu_memory_utilization,
        weights=profile.weights,
        other=profile.other,
        peak_activation=profile.peak_activation,
        bytes_per_block=bytes_per_block,
    )
