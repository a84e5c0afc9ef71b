"""The engine's loop: what every step records, and what a change of settings does and does not do."""

import random
from dataclasses import fields, replace
from typing import Any

import pytest

from engine.config import CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.errors import KVCacheTooSmall, OutOfDeviceMemory, UserError
from engine.executor.base import MemoryProfile, StepResult
from engine.executor.simulated import FixedStepTime, SimulatedExecutor
from engine.model.presets import preset_arch
from engine.request import Request, SamplingParams
from engine.scheduler.plan import StepPlan
from engine.trace import IterationRecord

MS = 1_000_000
MIB = 1 << 20
BLOCK_SIZE = 4
SEATS = 6
BUDGET = 24
PROFILE = MemoryProfile(total=100 * MIB, weights=10 * MIB, other=0, peak_activation=0)


class RecordingExecutor(SimulatedExecutor):
    """Steps of 10 ms and 1 ms per token; remembers what the engine asked of it."""

    def __init__(self, max_model_len: int = 64) -> None:
        super().__init__(
            preset_arch("tiny"),
            FixedStepTime(0.010, 0.001),
            device_name="sim:test",
            device_memory_bytes=PROFILE.total,
            max_model_len=max_model_len,
        )
        self.plans: list[StepPlan] = []
        self.allocated: list[tuple[int, int, int]] = []
        self.profiled: list[tuple[int, int]] = []
        self.fail: Exception | None = None

    def execute(self, plan: StepPlan) -> StepResult:
        if self.fail is not None:
            raise self.fail
        self.plans.append(plan)
        return super().execute(plan)

    def kv_bytes_per_block(self, block_size: int) -> int:
        return block_size * MIB

    def profile_memory(self, max_num_batched_tokens: int, max_num_seqs: int) -> MemoryProfile:
        """A token of the budget takes a fifth of a MiB."""
        self.profiled.append((max_num_batched_tokens, max_num_seqs))
        return replace(PROFILE, peak_activation=max_num_batched_tokens * 2 * MIB // 10)

    def allocate_kv(self, num_blocks: int, block_size: int, num_swap_blocks: int = 0) -> None:
        super().allocate_kv(num_blocks, block_size, num_swap_blocks)
        self.allocated.append((num_blocks, block_size, num_swap_blocks))


def make_engine(blocks: int | None = 40, max_model_len: int = 64, **scheduler: Any) -> tuple[Engine, RecordingExecutor]:
    executor = RecordingExecutor(max_model_len)
    config = SchedulerConfig(**{"max_num_seqs": SEATS, "max_num_batched_tokens": BUDGET} | scheduler)
    cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=False, num_gpu_blocks_override=blocks)
    return Engine(executor, config, cache), executor


def ask(name: str, prompt: int = 5, output: int = 4) -> Request:
    return Request(name, list(range(1, prompt + 1)), SamplingParams(max_tokens=output, ignore_eos=True))


def random_requests(seed: int, count: int = 24) -> list[Request]:
    numbers = random.Random(seed)
    return [ask(f"r{i}", numbers.randint(1, 40), numbers.randint(1, 20)) for i in range(count)]


def run_to_the_end(engine: Engine, requests: list[Request], seed: int) -> list[IterationRecord]:
    """Requests come in between steps, a few at a time."""
    numbers, left, records = random.Random(seed), list(requests), []
    while left or engine.has_work:
        for _ in range(min(len(left), numbers.randint(0, 3))):
            engine.add_request(left.pop(0))
        records.append(engine.step()[1])
        engine.scheduler.check_integrity()
    return records


# The small pool forces preemptions; the small chunk makes prefills of many steps.
@pytest.mark.parametrize(("blocks", "chunk_size"), [(200, 0), (17, 0), (17, 5)])
@pytest.mark.parametrize("seed", range(4))
class TestEveryStepLeavesARecord:
    def test_whose_numbers_add_up(self, seed: int, blocks: int, chunk_size: int) -> None:
        engine, executor = make_engine(blocks, chunk_size=chunk_size)
        records = run_to_the_end(engine, random_requests(seed), seed)
        assert [r.iteration for r in records] == list(range(len(records)))
        with_work = [r for r in records if r.prefill_seqs + r.decode_seqs]
        assert len(with_work) == len(executor.plans)
        for record, plan in zip(with_work, executor.plans, strict=True):
            assert record.prefill_tokens + record.decode_tokens == plan.num_tokens <= BUDGET
            assert record.prefill_seqs + record.decode_seqs == len(plan.scheduled) <= record.running <= SEATS
            assert record.decode_tokens == record.decode_seqs
            assert record.prefill_tokens >= record.prefill_seqs
            assert record.context_tokens == sum(s.num_computed + s.num_tokens for s in plan.scheduled)
            attended = [s.num_computed + i + 1 for s in plan.scheduled for i in range(s.num_tokens)]
            assert record.attended_tokens == sum(attended)
            assert record.preemptions_recompute == len(plan.preempted)
            assert 0 < record.kv_blocks_used <= record.kv_blocks_total == blocks
            assert record.recomputed_tokens <= record.prefill_tokens + record.decode_tokens
            assert record.cached_tokens == record.swapped_in_blocks == record.swapped_out_blocks == 0
            assert record.preemptions_swap == 0

    def test_and_the_records_together_account_for_every_request(self, seed: int, blocks: int, chunk_size: int) -> None:
        engine, _ = make_engine(blocks, chunk_size=chunk_size)
        requests = random_requests(seed)
        records = run_to_the_end(engine, requests, seed)
        preemptions = sum(r.preemptions_recompute for r in records)
        recomputed = sum(r.recomputed_tokens for r in records)
        assert preemptions == sum(q.num_preemptions for q in requests)
        assert (preemptions > 0) is (blocks == 17)
        assert recomputed == sum(q.num_recomputed_tokens for q in requests)
        # The last token of an answer is handed out, never computed.
        once = sum(q.num_prompt_tokens + q.num_output_tokens - 1 for q in requests)
        assert sum(r.prefill_tokens + r.decode_tokens for r in records) == once + recomputed
        assert all(q.num_output_tokens == q.sampling.max_tokens for q in requests)

    def test_and_the_times_add_up(self, seed: int, blocks: int, chunk_size: int) -> None:
        engine, _ = make_engine(blocks, chunk_size=chunk_size)
        records = run_to_the_end(engine, random_requests(seed), seed)
        now = 0
        for record in records:
            tokens = record.prefill_tokens + record.decode_tokens
            assert record.t_start == now
            assert record.t_end - record.t_start == record.schedule_time_ns + record.execute_time_ns
            assert record.execute_time_ns == ((10 + tokens) * MS if tokens else 0)
            assert record.gap_ns == 0
            now = record.t_end


def test_every_token_is_one_event_and_the_last_says_why_it_ended() -> None:
    engine, _ = make_engine()
    requests = random_requests(5)
    for request in requests:
        engine.add_request(request)
    counts: dict[str, int] = {}
    ended: dict[str, str] = {}
    while engine.has_work:
        events, record = engine.step()
        for event in events:
            assert event.request_id not in ended
            assert event.time_ns == record.t_end
            counts[event.request_id] = counts.get(event.request_id, 0) + len(event.token_ids)
            if event.finish_reason is not None:
                ended[event.request_id] = event.finish_reason
    assert counts == {q.request_id: q.sampling.max_tokens for q in requests}
    assert ended == {q.request_id: "length" for q in requests}


def test_gap_is_the_time_between_two_executions() -> None:
    engine, executor = make_engine()
    engine.add_request(ask("a"))
    assert engine.step()[1].gap_ns == 0
    executor.clock.advance(7 * MS)
    assert engine.step()[1].gap_ns == 7 * MS
    assert engine.step()[1].gap_ns == 0


def test_a_step_without_work_executes_nothing() -> None:
    engine, executor = make_engine()
    events, record = engine.step()
    assert events == []
    assert (record.running, record.prefill_seqs, record.execute_time_ns, record.device_time_ns) == (0, 0, 0, None)
    assert executor.plans == []


def test_prefix_hits_are_counted_when_a_request_is_admitted() -> None:
    engine, _ = make_engine()
    engine.reconfigure(cache=replace(engine.cache_config, enable_prefix_caching=True))
    cached = []
    for name in ("a", "b"):
        engine.add_request(ask(name, prompt=13, output=2))
        cached.append(engine.step()[1].cached_tokens)
        engine.step()
    assert cached == [0, 12]


def test_an_aborted_request_gives_its_blocks_back() -> None:
    engine, _ = make_engine()
    engine.add_request(ask("a"))
    engine.step()
    assert engine.abort("a")
    assert not engine.abort("a")
    assert not engine.has_work
    engine.add_request(ask("b", prompt=4, output=1))
    assert engine.step()[1].kv_blocks_used == 1


def test_reconfigure_with_work_is_an_error_and_changes_nothing() -> None:
    engine, _ = make_engine()
    engine.add_request(ask("a"))
    before = engine.scheduler_config
    with pytest.raises(RuntimeError, match="idle"):
        engine.reconfigure(scheduler=SchedulerConfig(max_num_seqs=2))
    assert engine.scheduler_config is before
    while engine.has_work:
        engine.step()
    engine.reconfigure(scheduler=SchedulerConfig(max_num_seqs=2))
    assert engine.scheduler_config.max_num_seqs == 2


NEW_SCHEDULER = SchedulerConfig(
    max_num_seqs=2,
    max_num_batched_tokens=7,
    chunk_size=3,
    policy="priority",
    aging=60.0,
    short_first_tokens=1,
    retried_first=True,
    max_queue_delay=0.1,
    preferred_batch_size=2,
    max_queue_len=10,
    max_queue_tokens=1000,
    queue_timeout=30.0,
    max_predicted_wait=20.0,
    preemption_mode="swap",
    preemption_victim="last",
)
NEW_CACHE = CacheConfig(gpu_memory_utilization=0.5, block_size=8, enable_prefix_caching=True, swap_space=100 * MIB)


def test_reconfigure_changes_every_tuned_setting() -> None:
    engine, executor = make_engine(blocks=None, max_model_len=16)
    old = {**_values(engine.scheduler_config), **_values(engine.cache_config)}
    engine.reconfigure(scheduler=NEW_SCHEDULER, cache=NEW_CACHE)
    new = {**_values(engine.scheduler_config), **_values(engine.cache_config)}
    assert new == _values(NEW_SCHEDULER) | _values(NEW_CACHE)
    # Another mode of batching would make other steps; its own tests change it.
    assert {name for name in new if new[name] == old[name]} == {"num_gpu_blocks_override", "batching"}
    # In use, not only in the record: 50 of 100 MiB less 10 for weights and 1.4 for a step of 7, in blocks of 8 MiB.
    assert engine.num_blocks == 4
    assert executor.allocated[-1] == (engine.num_blocks, 8, 12)
    assert engine.scheduler.kv.host.num_blocks == engine.num_swap_blocks == 12
    assert executor.profiled[-1] == (7, 2)
    for name, priority in (("late", 1), ("urgent", 0), ("last", 2)):
        request = ask(name, prompt=9, output=2)
        request.priority = priority
        engine.add_request(request)
    record = engine.step()[1]
    plan = executor.plans[-1]
    assert [s.request.request_id for s in plan.scheduled] == ["urgent", "late"]
    assert [s.num_tokens for s in plan.scheduled] == [3, 3]
    assert record.kv_blocks_total == engine.num_blocks
    assert record.kv_blocks_used == 2


def test_swap_space_without_room_for_a_block_is_refused_and_changes_nothing() -> None:
    engine, executor = make_engine()
    before = (engine.scheduler_config, engine.cache_config, engine.num_blocks)
    scheduler = replace(engine.scheduler_config, preemption_mode="swap")
    with pytest.raises(UserError, match="swap_space=1000 holds not one block"):
        engine.reconfigure(scheduler=scheduler, cache=replace(engine.cache_config, swap_space=1000))
    assert (engine.scheduler_config, engine.cache_config, engine.num_blocks) == before
    # It is not looked at while nothing swaps.
    engine.reconfigure(cache=replace(engine.cache_config, swap_space=1000))
    assert executor.allocated[-1][2] == 0


def test_no_swap_space_at_all_means_recompute() -> None:
    engine, executor = make_engine(preemption_mode="swap")
    engine.reconfigure(cache=replace(engine.cache_config, swap_space=0))
    assert executor.allocated[-1][2] == engine.num_swap_blocks == 0


def test_a_reconfigure_that_fails_leaves_nothing_to_be_found_in_the_prefix_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The old sizes are allocated again: what the old tensors held is gone."""
    engine, executor = make_engine()
    engine.add_request(ask("a", prompt=40))
    while engine.has_work:
        engine.step()
    allocate = executor.allocate_kv

    def refuse_more(num_blocks: int, block_size: int, num_swap_blocks: int = 0) -> None:
        allocate(num_blocks, block_size, num_swap_blocks)
        if num_blocks == 41:
            raise OutOfDeviceMemory("too much")

    monkeypatch.setattr(executor, "allocate_kv", refuse_more)
    with pytest.raises(OutOfDeviceMemory):
        engine.reconfigure(cache=replace(engine.cache_config, num_gpu_blocks_override=41))
    engine.add_request(ask("b", prompt=40))
    assert engine.step()[1].cached_tokens == 0


@pytest.mark.parametrize("priority", [10**10, -(10**400)])
def test_a_priority_beyond_all_sense_is_refused(priority: int) -> None:
    with pytest.raises(UserError, match="is not possible: it lies within"):
        Request("a", [1], SamplingParams(), priority=priority)


def test_a_step_that_is_asked_for_while_a_batch_grows_sleeps_until_it_is_ready() -> None:
    engine, _ = make_engine(batching="dynamic", max_queue_delay=2.0, preferred_batch_size=2)
    engine.add_request(ask("a"))
    assert engine.idle_until_ns == 2_000_000_000
    record = engine.step()[1]
    assert (record.t_start, record.prefill_seqs) == (2_000_000_000, 1)
    assert engine.idle_until_ns is None


def _values(config: SchedulerConfig | CacheConfig) -> dict[str, Any]:
    return {f.name: getattr(config, f.name) for f in fields(config)}


def test_reconfigure_with_the_budget_in_use_plans_no_more_than_it() -> None:
    engine, _ = make_engine()
    engine.reconfigure(scheduler=replace(engine.scheduler_config, max_num_batched_tokens=7))
    engine.add_request(ask("a", prompt=20))
    assert [engine.step()[1].prefill_tokens for _ in range(3)] == [7, 7, 6]


def test_settings_that_cannot_work_leave_the_old_ones_in_place() -> None:
    engine, executor = make_engine(blocks=None)
    before = (engine.scheduler_config, engine.cache_config, engine.kv_budget, engine.num_blocks, executor.allocated[-1])
    with pytest.raises(KVCacheTooSmall, match=r"gpu_memory_utilization=0\.5"):
        engine.reconfigure(cache=replace(engine.cache_config, gpu_memory_utilization=0.5))
    with pytest.raises(KVCacheTooSmall):
        engine.reconfigure(scheduler=SchedulerConfig(max_num_batched_tokens=4096))
    # Measuring a step may have cost the cache its tensors, so they are asked for again.
    after = (engine.scheduler_config, engine.cache_config, engine.kv_budget, engine.num_blocks, executor.allocated[-1])
    assert after == before
    engine.add_request(ask("a"))
    assert engine.step()[1].kv_blocks_total == engine.num_blocks


def test_settings_that_cannot_be_allocated_leave_the_old_ones_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = make_engine(blocks=None)
    before = (engine.scheduler_config, engine.cache_config, engine.num_blocks)

    def no_room(*_: object) -> None:
        raise OutOfDeviceMemory("no room")

    monkeypatch.setattr(RecordingExecutor, "allocate_kv", no_room)
    with pytest.raises(OutOfDeviceMemory):
        engine.reconfigure(cache=replace(engine.cache_config, gpu_memory_utilization=1.0))
    assert (engine.scheduler_config, engine.cache_config, engine.num_blocks) == before


def test_the_kv_cache_keeps_its_size_unless_its_own_settings_change() -> None:
    engine, executor = make_engine(blocks=None)
    engine.reconfigure(scheduler=replace(engine.scheduler_config, max_num_seqs=2, chunk_size=3, policy="priority"))
    engine.reconfigure(cache=replace(engine.cache_config, enable_prefix_caching=True))
    assert len(set(executor.allocated)) == 1
    engine.reconfigure(cache=replace(engine.cache_config, gpu_memory_utilization=1.0))
    engine.reconfigure(cache=replace(engine.cache_config, block_size=2))
    assert len(set(executor.allocated)) == 3


def test_a_reconfigured_engine_counts_and_caches_afresh() -> None:
    engine, executor = make_engine()
    cache = replace(engine.cache_config, enable_prefix_caching=True)
    engine.reconfigure(cache=cache)
    for _ in range(2):
        engine.add_request(ask("a", prompt=13, output=1))
        record = engine.step()[1]
        assert (record.iteration, record.cached_tokens, record.gap_ns) == (0, 0, 0)
        executor.clock.advance(5 * MS)
        engine.reconfigure(cache=cache)


@pytest.mark.parametrize("error", [OutOfDeviceMemory("no room"), RuntimeError("crash")], ids=str)
def test_reset_after_a_failed_step_drops_everything_and_keeps_the_settings(error: Exception) -> None:
    engine, executor = make_engine()
    for i in range(8):
        engine.add_request(ask(f"r{i}", prompt=9))
    engine.step()
    executor.fail = error
    with pytest.raises(type(error), match=str(error)):
        engine.step()
    executor.fail = None
    config = engine.scheduler_config
    engine.reset()
    assert not engine.has_work
    assert engine.scheduler_config is config
    request = ask("r0", prompt=4, output=3)
    engine.add_request(request)
    records = [engine.step()[1] for _ in range(3)]
    assert request.num_output_tokens == 3
    assert [r.iteration for r in records] == [0, 1, 2]
    assert records[0].kv_blocks_used == 1
    engine.scheduler.check_integrity()
