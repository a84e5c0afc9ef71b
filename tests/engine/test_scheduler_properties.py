"""Whatever arrives, is aborted or has to be preempted: no block is lost, and every request gets what it asked for."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.clock import VirtualClock
from engine.config import BATCHING_MODES, POLICIES, PREEMPTION_MODES, PREEMPTION_VICTIMS, SchedulerConfig
from engine.errors import RequestRefused, RequestShed
from engine.executor.base import StepResult
from engine.kv_cache.manager import KVCacheManager
from engine.request import FinishReason, Request, RequestStatus, SamplingParams
from engine.scheduler.plan import StepPlan, WaitCause
from engine.scheduler.preemption import PreemptionCost
from engine.scheduler.scheduler import Scheduler

MAX_MODEL_LEN = 60
STEP_NS = 10_000_000

asked_requests = st.builds(
    lambda prompt, max_tokens, priority: (prompt, max_tokens, priority),
    # Few distinct tokens, so that prefixes are shared and blocks of equal content meet.
    st.lists(st.integers(0, 1), min_size=1, max_size=30),
    st.integers(1, 20),
    st.integers(0, 2),
)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), asked_requests),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("abort in flight"), st.integers(0, 30)),
        st.tuples(st.just("step"), st.integers(1, 4)),
        st.tuples(st.just("pass time"), st.sampled_from([1, STEP_NS, 20 * STEP_NS])),
    ),
    max_size=40,
)
configs = st.builds(
    SchedulerConfig,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 40),
    chunk_size=st.sampled_from([0, 1, 3, 8]),
    policy=st.sampled_from(POLICIES),
    aging=st.sampled_from([0.0, 0.05, 1.0]),
    short_first_tokens=st.sampled_from([0, 4]),
    retried_first=st.booleans(),
    batching=st.sampled_from(BATCHING_MODES),
    max_queue_delay=st.sampled_from([0.0, 0.005, 0.1]),
    preferred_batch_size=st.sampled_from([0, 1, 3]),
    max_queue_len=st.sampled_from([0, 0, 0, 2]),
    max_queue_tokens=st.sampled_from([0, 0, 0, 40]),
    queue_timeout=st.sampled_from([0.0, 0.0, 0.0, 0.03]),
    max_predicted_wait=st.sampled_from([0.0, 0.0, 0.0, 0.02]),
    preemption_mode=st.sampled_from(PREEMPTION_MODES),
    preemption_victim=st.sampled_from(PREEMPTION_VICTIMS),
)


class Machine:
    """A scheduler with a content-checking executor: it knows which tokens each block really holds."""

    def __init__(
        self, config: SchedulerConfig, num_blocks: int, block_size: int, caching: bool, num_swap_blocks: int = 0
    ) -> None:
        self.config = config
        self.clock = VirtualClock()
        self.kv = KVCacheManager(num_blocks, block_size, enable_prefix_caching=caching, num_swap_blocks=num_swap_blocks)
        # A token takes as long as two thirds of a block's way out and back: `auto` swaps some and not others.
        cost = PreemptionCost(bytes_per_block=1, link_bytes_per_s=3 / (STEP_NS / 1e9))
        self.scheduler = Scheduler(config, self.kv, self.clock, max_model_len=MAX_MODEL_LEN, preemption_cost=cost)
        self.requests: list[Request] = []
        self.timed_out: list[str] = []
        self.contents: dict[tuple[int, int], tuple[int, ...]] = {}
        self.host_contents: dict[tuple[int, int], tuple[int, ...]] = {}

    def add(self, prompt: list[int], max_tokens: int, priority: int) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        request = Request(str(len(self.requests)), prompt, sampling, priority=priority)
        try:
            self.scheduler.add(request)
        except RequestRefused:
            pool_tokens = self.kv.pool.num_blocks * self.kv.block_size
            assert len(prompt) + max_tokens > min(MAX_MODEL_LEN, pool_tokens)
            return
        except RequestShed as shed:
            self.check_shed(shed)
            return
        self.requests.append(request)
        if self.config.max_queue_len:
            waiting = sum(r.status is RequestStatus.WAITING for r in self.requests)
            assert waiting <= self.config.max_queue_len + self.config.max_num_seqs

    def check_shed(self, shed: RequestShed) -> None:
        assert getattr(self.config, shed.limit)
        assert shed.retry_after_s >= 1
        waiting = [r for r in self.requests if r.status is RequestStatus.WAITING]
        assert waiting, "turned away by an empty queue"
        if shed.limit == "max_queue_len":
            assert len(waiting) >= self.config.max_queue_len
        if shed.limit == "max_queue_tokens":
            assert sum(r.num_prompt_tokens for r in waiting) + MAX_MODEL_LEN > self.config.max_queue_tokens

    def abort(self, number: int) -> None:
        if self.requests:
            self.scheduler.abort(self.requests[number % len(self.requests)].request_id)

    def step(self, abort_in_flight: int | None = None) -> StepPlan:
        were_running = {id(r) for r in self.scheduler.running}
        plan = self.scheduler.schedule()
        self.check_plan(plan, were_running)
        if abort_in_flight is not None:
            self.abort(abort_in_flight)
            self.scheduler.check_integrity()
        self.execute(plan)
        self.clock.advance(STEP_NS)
        self.scheduler.preemption_cost.observe(plan, plan.num_tokens * STEP_NS)
        events = self.scheduler.finish_step(plan, StepResult([0] * sum(s.samples for s in plan.scheduled)))
        self.timed_out += [e.request_id for e in events if e.finish_reason is FinishReason.QUEUE_TIMEOUT]
        self.scheduler.check_integrity()
        return plan

    def check_plan(self, plan: StepPlan, were_running: set[int]) -> None:
        self.scheduler.check_integrity()
        assert plan.num_tokens <= self.config.max_num_batched_tokens
        assert len({id(s.request) for s in plan.scheduled}) == len(plan.scheduled) <= self.config.max_num_seqs
        alone = len(plan.scheduled) == 1
        for share in plan.scheduled:
            assert share.num_tokens >= 1
            assert alone or not self.config.chunk_size or share.num_tokens <= self.config.chunk_size
        if self.config.batching != "continuous":
            # A preempted request whose whole cache is found again is admitted with one token, as if it decoded.
            decodes = [s.is_decode for s in plan.scheduled if id(s.request) in were_running or not s.is_decode]
            assert len(set(decodes)) <= 1, "prefill and decode in one step"
        if self.config.preemption_mode == "recompute":
            assert not plan.swap_out
        assert (plan.wait_cause is None) == (plan.num_waiting == 0)
        assert (plan.blocked_request is not None) == (plan.wait_cause is WaitCause.BLOCKS)
        assert plan.scheduled or not self.scheduler.running, "requests run, but nothing of them"

    def execute(self, plan: StepPlan) -> None:
        """Copy out, copy in, write every token's place, then read every context, as an attention layer does."""
        size = self.kv.block_size
        for block, host in plan.swap_out:
            for offset in range(size):
                self.host_contents[host, offset] = self.contents.get((block, offset), ())
        for host, block in plan.swap_in:
            for offset in range(size):
                self.contents[block, offset] = self.host_contents[host, offset]
        for share in plan.scheduled:
            tokens = share.request.token_ids
            for position in range(share.num_computed, share.num_computed + share.num_tokens):
                place = (share.request.block_table[position // size], position % size)
                self.contents[place] = tuple(tokens[: position + 1])
        for share in plan.scheduled:
            for position in range(share.num_computed + share.num_tokens):
                place = (share.request.block_table[position // size], position % size)
                expected = tuple(share.request.token_ids[: position + 1])
                assert self.contents.get(place) == expected, f"{share.request.request_id} reads a wrong token"


@settings(max_examples=1000, deadline=None, print_blob=True)
@given(configs, st.integers(1, 16), st.sampled_from([1, 2, 4]), st.booleans(), st.sampled_from([0, 3, 8, 40]), actions)
def test_pools_stay_whole_and_contents_right_under_any_sequence_of_actions(
    config: SchedulerConfig, num_blocks: int, block_size: int, caching: bool, num_swap_blocks: int, todo: list
) -> None:
    machine = Machine(config, num_blocks, block_size, caching, num_swap_blocks)
    for kind, argument in todo:
        if kind == "add":
            machine.add(*argument)
        elif kind == "abort":
            machine.abort(argument)
            machine.scheduler.check_integrity()
        elif kind == "abort in flight":
            machine.step(abort_in_flight=argument)
        elif kind == "pass time":
            machine.clock.advance(argument)
        else:
            for _ in range(argument):
                machine.step()
    steps = 0
    while machine.scheduler.has_work:
        idle_until_ns = machine.scheduler.idle_until_ns
        if idle_until_ns is not None:
            assert idle_until_ns <= machine.clock.now_ns() + machine.config.max_queue_delay * 1e9
            machine.clock.sleep_until(idle_until_ns)
        plan = machine.step()
        steps += 1
        assert plan.scheduled or plan.timed_out, "a step for nothing"
        assert steps < 20_000, "no progress"
    assert machine.kv.pool.num_used == 0, "blocks leaked when idle"
    assert machine.kv.host.num_free == num_swap_blocks, "host blocks leaked when idle"
    assert len(machine.scheduler.room) == 0
    for request in machine.requests:
        if request.finish_reason is FinishReason.LENGTH:
            assert request.num_output_tokens == request.sampling.max_tokens
        elif request.finish_reason is FinishReason.QUEUE_TIMEOUT:
            assert config.queue_timeout
            assert request.num_output_tokens == request.num_preemptions == 0
        else:
            assert request.finish_reason is FinishReason.ABORT
        kinds = [e.kind for e in request.history]
        assert kinds[0] == "queued"
        assert kinds[-1] == "finished"
        preempted = [e.detail.partition(":")[0] for e in request.history if e.kind == "preempted"]
        assert len(preempted) == request.num_preemptions
        assert preempted.count("swap") == request.num_swaps
    ended_by_timeout = [r.request_id for r in machine.requests if r.finish_reason is FinishReason.QUEUE_TIMEOUT]
    assert sorted(machine.timed_out) == sorted(ended_by_timeout), "each timeout is told once"
