"""With a step launched before the one under way has brought its tokens, every request is answered as without."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import BATCHING_MODES, POLICIES, PREEMPTION_MODES, PREEMPTION_VICTIMS, CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.errors import RequestRefused, RequestShed
from engine.request import FinishReason, Request, SamplingParams
from engine.trace import IterationRecord
from tests.engine.late_executor import EOS, STEP_NS, VOCAB, LateExecutor, answer, next_token

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=30)
asked = st.tuples(prompts, st.integers(1, 20), st.booleans(), st.sampled_from([(), (3,), (0, 1)]), st.integers(0, 2))
actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), asked),
        st.tuples(st.just("add"), asked),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("pass time"), st.sampled_from([1, STEP_NS, 20 * STEP_NS])),
        st.tuples(st.just("reconfigure"), st.integers(6, 16)),
    ),
    max_size=40,
)
configs = st.builds(
    SchedulerConfig,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 40),
    chunk_size=st.sampled_from([0, 1, 3, 8]),
    policy=st.sampled_from(POLICIES),
    aging=st.sampled_from([0.0, 0.05]),
    batching=st.sampled_from(BATCHING_MODES),
    max_queue_delay=st.sampled_from([0.0, 0.1]),
    preferred_batch_size=st.sampled_from([0, 3]),
    queue_timeout=st.sampled_from([0.0, 0.0, 0.03]),
    preemption_mode=st.sampled_from(PREEMPTION_MODES),
    preemption_victim=st.sampled_from(PREEMPTION_VICTIMS),
)


class Served:
    """An engine over a late executor, and what its clients were told."""

    def __init__(self, config: SchedulerConfig, *, overlaps: bool, **cache: Any) -> None:
        self.executor = LateExecutor(overlaps=overlaps)
        self.engine = Engine(self.executor, config, CacheConfig(**cache))
        self.requests: list[Request] = []
        self.told: dict[str, list[int]] = {}
        self.reasons: dict[str, str] = {}
        self.records: list[IterationRecord] = []

    def add(
        self, prompt: list[int], max_tokens: int, ignore_eos: bool, stops: tuple[int, ...] = (), priority: int = 0
    ) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos, stop_token_ids=stops)
        request = Request(str(len(self.requests)), prompt, sampling, priority=priority)
        try:
            self.engine.add_request(request)
        except (RequestRefused, RequestShed):
            return
        self.requests.append(request)
        self.told[request.request_id] = []

    def abort(self, number: int) -> None:
        if self.requests:
            request = self.requests[number % len(self.requests)]
            if self.engine.abort(request.request_id):
                self.reasons[request.request_id] = FinishReason.ABORT
            self.engine.scheduler.check_integrity()

    def step(self) -> IterationRecord:
        events, record = self.engine.step()
        self.engine.scheduler.check_integrity()
        self.records.append(record)
        for event in events:
            assert event.request_id not in self.reasons, "told something after its end"
            self.told[event.request_id] += event.token_ids
            if event.finish_reason is not None:
                self.reasons[event.request_id] = event.finish_reason
        return record

    def run(self) -> None:
        steps = 0
        while self.engine.has_work:
            self.step()
            steps += 1
            assert steps < 20_000, "no progress"

    def check(self) -> None:
        """All that was told is right and whole, and everything was given back."""
        for request in self.requests:
            sampling, name = request.sampling, request.request_id
            whole = answer(request.prompt_token_ids, sampling.max_tokens, sampling.ignore_eos, sampling.stop_token_ids)
            told = self.told[name]
            assert request.output_token_ids == told
            assert request.finish_reason == self.reasons[name]
            if request.finish_reason in (FinishReason.ABORT, FinishReason.QUEUE_TIMEOUT):
                assert told == whole[: len(told)]
            else:
                assert told == whole
        kv = self.engine.scheduler.kv
        assert kv.pool.num_used == 0, "blocks leaked"
        assert kv.host.num_free == kv.host.num_blocks, "host blocks leaked"
        assert not self.executor.under_way


@settings(max_examples=400, deadline=None, print_blob=True)
@given(configs, st.integers(6, 16), st.sampled_from([1, 2, 4]), st.booleans(), st.sampled_from([0, 3, 40]), actions)
@pytest.mark.parametrize("overlaps", [False, True])
def test_every_request_gets_its_own_answer(
    overlaps: bool,
    config: SchedulerConfig,
    num_blocks: int,
    block_size: int,
    caching: bool,
    num_swap_blocks: int,
    todo: list[tuple[str, Any]],
) -> None:
    def cache(blocks: int) -> dict[str, Any]:
        return {
            "num_gpu_blocks_override": blocks,
            "block_size": block_size,
            "enable_prefix_caching": caching,
            "swap_space": num_swap_blocks,
        }

    served = Served(config, overlaps=overlaps, **cache(num_blocks))
    for kind, argument in todo:
        if kind == "add":
            served.add(*argument)
        elif kind == "abort":
            served.abort(argument)
        elif kind == "pass time":
            served.executor.clock.advance(argument)
        elif kind == "reconfigure":
            served.run()
            served.engine.reconfigure(cache=CacheConfig(**cache(argument)))
        else:
            for _ in range(argument):
                if served.engine.has_work:
                    served.step()
    served.run()
    served.check()
    ends = [record.t_end for record in served.records]
    assert ends == sorted(ends)


@settings(max_examples=200, deadline=None, print_blob=True)
@given(configs, st.integers(6, 16), st.sampled_from([1, 2, 4]), st.lists(asked, min_size=1, max_size=8))
def test_lengths_known_in_advance_make_the_same_plans_and_waste_nothing(
    config: SchedulerConfig, num_blocks: int, block_size: int, todo: list[Any]
) -> None:
    """`max_tokens` ends a request before its step is done, so nothing need be known of its tokens."""
    cache = {
        "num_gpu_blocks_override": num_blocks,
        "block_size": block_size,
        "enable_prefix_caching": False,
        "swap_space": 40,
    }
    # Times differ by what is planned early, and the cost of a preemption is learnt from them.
    mode = "swap" if config.preemption_mode == "auto" else config.preemption_mode
    fixed = {"queue_timeout": 0.0, "max_queue_delay": 0.0, "aging": 0.0, "preemption_mode": mode}
    values = {name: getattr(config, name) for name in SchedulerConfig.__slots__}
    both = []
    for overlaps in (False, True):
        served = Served(SchedulerConfig(**values | fixed), overlaps=overlaps, **cache)
        for prompt, max_tokens, *_ in todo:
            served.add(prompt, max_tokens, True)
        served.run()
        served.check()
        both.append(served)
    assert both[0].executor.plans == both[1].executor.plans
    assert sum(record.wasted_rows for record in both[1].records) == 0
    assert len(both[0].records) == len(both[1].records)


def prompt_that_ends_after(count: int) -> list[int]:
    """A prompt whose answer has so many tokens, the last one a stop token."""
    return next([a, b, c] for a in range(7) for b in range(7) for c in range(7) if ends_after([a, b, c]) == count)


def ends_after(prompt: list[int]) -> int | None:
    output = answer(prompt, 30, ignore_eos=False)
    return len(output) if output[-1] == EOS else None


def test_a_stop_token_costs_one_row_and_the_record_of_that_step_says_so() -> None:
    served = Served(SchedulerConfig(), overlaps=True, num_gpu_blocks_override=40, block_size=4)
    served.add(prompt_that_ends_after(5), 30, False)
    served.run()
    served.check()
    assert served.executor.most_under_way == 2
    assert [record.wasted_rows for record in served.records] == [0, 0, 0, 0, 0, 1]
    assert [record.decode_tokens for record in served.records] == [0, 1, 1, 1, 1, 1]


def test_an_abort_costs_the_rows_that_are_under_way() -> None:
    served = Served(SchedulerConfig(), overlaps=True, num_gpu_blocks_override=40, block_size=4)
    served.add([1] * 9, 20, True)
    served.add([0] * 5, 3, True)
    served.step()
    served.abort(0)
    served.run()
    served.check()
    assert [record.wasted_rows for record in served.records] == [0, 1, 0]


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_request_may_end_by_a_token_that_was_under_way_when_it_was_preempted(mode: str) -> None:
    seen = 0
    for blocks in range(14, 26):
        config = SchedulerConfig(preemption_mode=mode)  # type: ignore[arg-type]
        served = Served(config, overlaps=True, num_gpu_blocks_override=blocks, block_size=1, swap_space=100)
        served.add([1, 0, 1], 12, True)
        served.add(prompt_that_ends_after(7), 9, False)
        served.run()
        served.check()
        seen += [event.kind for event in served.requests[1].history][-2:] == ["preempted", "finished"]
    assert seen > 0


def test_records_of_overlapped_steps_tile_the_time() -> None:
    served = Served(SchedulerConfig(), overlaps=True, num_gpu_blocks_override=40, block_size=4)
    for length in (9, 4, 14):
        served.add([1] * length, length, True)
    served.run()
    for before, record in zip(served.records, served.records[1:], strict=False):
        assert record.t_start == before.t_end
        assert record.execute_time_ns == record.t_end - record.t_start == STEP_NS
        assert record.gap_ns == 0
    assert [record.iteration for record in served.records] == list(range(len(served.records)))


def test_a_block_that_a_token_under_way_fills_is_found_once_the_token_is_known() -> None:
    served = Served(SchedulerConfig(), overlaps=True, num_gpu_blocks_override=40, block_size=4)
    prompt = [1, 0, 1]
    served.add(prompt, 10, True)
    served.run()
    output = answer(prompt, 10, ignore_eos=True)
    served.add(prompt + output, 2, True)
    # 12 of 13 tokens were computed; the last output token was handed out only.
    assert served.step().cached_tokens == 12
    served.run()
    served.check()


def test_a_step_that_fails_leaves_the_engine_usable_after_a_reset() -> None:
    served = Served(SchedulerConfig(), overlaps=True, num_gpu_blocks_override=40, block_size=4)
    served.add([1, 1], 8, True)
    served.step()
    served.executor.fail = RuntimeError("crash")
    with pytest.raises(RuntimeError, match="crash"):
        served.engine.step()
    assert served.engine.has_work
    served.engine.reset()
    assert not served.engine.has_work
    served.executor.fail = None
    served.requests.clear()
    served.add([1, 0], 4, True)
    served.run()
    served.check()


def test_the_model_of_these_tests_has_answers_of_all_kinds() -> None:
    assert {next_token((a, b)) for a in range(7) for b in range(7)} == set(range(VOCAB))
