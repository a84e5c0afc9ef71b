"""Whatever arrives, is aborted or has to be preempted: no block is lost, and every request gets what it asked for."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.clock import VirtualClock
from engine.config import SchedulerConfig
from engine.errors import RequestRefused
from engine.executor.base import StepResult
from engine.kv_cache.manager import KVCacheManager
from engine.request import FinishReason, Request, SamplingParams
from engine.scheduler.plan import StepPlan
from engine.scheduler.scheduler import Scheduler

MAX_MODEL_LEN = 60

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
    ),
    max_size=40,
)
configs = st.builds(
    SchedulerConfig,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 40),
    chunk_size=st.sampled_from([0, 1, 3, 8]),
    policy=st.sampled_from(["fcfs", "priority"]),
)


class Machine:
    """A scheduler with a content-checking executor: it knows which tokens each block really holds."""

    def __init__(self, config: SchedulerConfig, num_blocks: int, block_size: int, caching: bool) -> None:
        self.config = config
        self.kv = KVCacheManager(num_blocks, block_size, enable_prefix_caching=caching)
        self.scheduler = Scheduler(config, self.kv, VirtualClock(), max_model_len=MAX_MODEL_LEN)
        self.requests: list[Request] = []
        self.contents: dict[tuple[int, int], tuple[int, ...]] = {}

    def add(self, prompt: list[int], max_tokens: int, priority: int) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        request = Request(str(len(self.requests)), prompt, sampling, priority=priority)
        try:
            self.scheduler.add(request)
        except RequestRefused:
            pool_tokens = self.kv.pool.num_blocks * self.kv.block_size
            assert len(prompt) + max_tokens > min(MAX_MODEL_LEN, pool_tokens)
            return
        self.requests.append(request)

    def abort(self, number: int) -> None:
        if self.requests:
            self.scheduler.abort(self.requests[number % len(self.requests)].request_id)

    def step(self, abort_in_flight: int | None = None) -> StepPlan:
        plan = self.scheduler.schedule()
        self.check_plan(plan)
        if abort_in_flight is not None:
            self.abort(abort_in_flight)
            self.scheduler.check_integrity()
        self.execute(plan)
        self.scheduler.finish_step(plan, StepResult([0] * sum(s.samples for s in plan.scheduled)))
        self.scheduler.check_integrity()
        return plan

    def check_plan(self, plan: StepPlan) -> None:
        self.scheduler.check_integrity()
        assert plan.num_tokens <= self.config.max_num_batched_tokens
        assert len({id(s.request) for s in plan.scheduled}) == len(plan.scheduled) <= self.config.max_num_seqs
        alone = len(plan.scheduled) == 1
        for share in plan.scheduled:
            assert share.num_tokens >= 1
            assert alone or not self.config.chunk_size or share.num_tokens <= self.config.chunk_size

    def execute(self, plan: StepPlan) -> None:
        """Write every token's place first, then read every context, as an attention layer does."""
        size = self.kv.block_size
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


@settings(max_examples=300, deadline=None, print_blob=True)
@given(configs, st.integers(1, 16), st.sampled_from([1, 2, 4]), st.booleans(), actions)
def test_pool_stays_whole_and_contents_right_under_any_sequence_of_actions(
    config: SchedulerConfig, num_blocks: int, block_size: int, caching: bool, todo: list
) -> None:
    machine = Machine(config, num_blocks, block_size, caching)
    for kind, argument in todo:
        if kind == "add":
            machine.add(*argument)
        elif kind == "abort":
            machine.abort(argument)
            machine.scheduler.check_integrity()
        elif kind == "abort in flight":
            machine.step(abort_in_flight=argument)
        else:
            for _ in range(argument):
                machine.step()
    steps = 0
    while machine.scheduler.has_work:
        machine.step()
        steps += 1
        assert steps < 20_000, "no progress"
    assert machine.kv.pool.num_used == 0, "blocks leaked when idle"
    assert len(machine.scheduler.waiting) == 0
    assert machine.scheduler.running == []
    for request in machine.requests:
        if request.finish_reason is not FinishReason.ABORT:
            assert request.num_output_tokens == request.sampling.max_tokens
        assert request.history[0].kind == "queued"
        assert [e.kind for e in request.history].count("preempted") == request.num_preemptions
        assert request.history[-1].kind == "finished"
