"""The simulated device: longer steps for more work, a clock that only steps move, and memory that adds up."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.errors import UserError
from engine.executor.roofline import CARDS, Roofline, find_card
from engine.executor.simulated import FixedStepTime, SimulatedExecutor
from engine.kv_cache.sizing import GIB
from engine.model.presets import preset_arch
from engine.request import Request, SamplingParams
from engine.scheduler.plan import ScheduledRequest, StepPlan
from engine.trace import IterationRecord

ARCH = preset_arch("qwen2.5-7b")
MODEL = Roofline(ARCH, CARDS["a100-80g"])
REQUEST = Request("a", [1], SamplingParams())

Share = tuple[int, int, bool]
SHARES = st.lists(st.tuples(st.integers(0, 8000), st.integers(1, 4000), st.booleans()), min_size=1, max_size=8)


def step(shares: list[Share]) -> StepPlan:
    """A step of (computed tokens, new tokens, yields a token) per request."""
    return StepPlan([ScheduledRequest(REQUEST, done, new, samples, False) for done, new, samples in shares])


def seconds(shares: list[Share], model: Roofline = MODEL) -> float:
    return model.seconds(step(shares))


@given(shares=SHARES, more=st.integers(1, 2000))
def test_a_step_with_more_tokens_is_no_shorter(shares: list[Share], more: int) -> None:
    (done, new, samples), *others = shares
    assert seconds([(done, new + more, samples), *others]) >= seconds(shares)


@given(shares=SHARES, more=st.integers(1, 20_000))
def test_a_step_with_more_context_is_no_shorter(shares: list[Share], more: int) -> None:
    (done, new, samples), *others = shares
    assert seconds([(done + more, new, samples), *others]) >= seconds(shares)


@given(shares=SHARES, another=SHARES)
def test_a_step_with_more_requests_is_longer_but_shorter_than_two_steps(
    shares: list[Share], another: list[Share]
) -> None:
    together = seconds(shares + another)
    assert max(seconds(shares), seconds(another)) < together < seconds(shares) + seconds(another)


def test_decoding_is_bound_by_reading_the_weights_and_prefill_by_arithmetic() -> None:
    card = MODEL.card
    faster_memory = dataclasses.replace(MODEL, card=dataclasses.replace(card, bandwidth_gb_s=2 * card.bandwidth_gb_s))
    faster_arithmetic = dataclasses.replace(MODEL, card=dataclasses.replace(card, tflops=2 * card.tflops))
    decode, prefill = [(500, 1, True)] * 4, [(0, 2048, False)]
    assert seconds(decode, faster_memory) < seconds(decode) == seconds(decode, faster_arithmetic)
    assert seconds(prefill, faster_arithmetic) < seconds(prefill) == seconds(prefill, faster_memory)


def test_one_decode_takes_the_time_to_read_weights_and_cache() -> None:
    expected = (ARCH.weight_bytes(2) + 501 * ARCH.kv_bytes_per_token(2)) / (2039e9 * 0.8) + 1e-3 + 5e-6
    assert seconds([(500, 1, True)]) == pytest.approx(expected)


@pytest.mark.parametrize("computed", [0, 100, 4094, 4095, 4096, 30_000])
@pytest.mark.parametrize("tokens", [1, 300])
def test_a_sliding_window_bounds_the_cache_that_a_step_reads(computed: int, tokens: int) -> None:
    arch = dataclasses.replace(ARCH, sliding_window=4096)
    # So much arithmetic that memory decides.
    card = dataclasses.replace(MODEL.card, tflops=1e9)
    windowed, full = (seconds([(computed, tokens, True)], Roofline(a, card)) for a in (arch, ARCH))
    unread = max(0, computed - 4095) * ARCH.kv_bytes_per_token(2)
    assert full - windowed == pytest.approx(unread / (2039e9 * 0.8), abs=1e-12)


def test_no_card_is_faster_than_its_published_figures() -> None:
    for card in CARDS.values():
        decode = seconds([(0, 1, True)], Roofline(ARCH, card))
        prefill = seconds([(0, 4096, True)], Roofline(ARCH, card))
        assert decode > ARCH.weight_bytes(2) / (card.bandwidth_gb_s * 1e9)
        in_layers = ARCH.num_parameters - 2 * ARCH.vocab_size * ARCH.hidden_size
        assert prefill > 2 * 4096 * in_layers / (card.tflops * 1e12)
        assert Roofline(ARCH, card).swap_seconds(1000, 10**6) > 1e9 / (card.host_gb_s * 1e9)


@pytest.mark.parametrize("name", [*CARDS, "A100-80G"])
def test_known_cards_are_found_whatever_their_case(name: str) -> None:
    assert find_card(name) is CARDS[name.lower()]


@pytest.mark.parametrize("name", ["", "b9000", "a100"])
def test_an_unknown_card_is_refused_with_all_that_are_known(name: str) -> None:
    with pytest.raises(UserError, match=f"'sim:{name}'") as refusal:
        find_card(name)
    assert all(f"sim:{card}" in str(refusal.value) for card in CARDS)


def make_executor(model: Roofline | FixedStepTime = MODEL, memory: int = 80 * GIB) -> SimulatedExecutor:
    return SimulatedExecutor(ARCH, model, device_name="sim:a100-80g", device_memory_bytes=memory, max_model_len=4096)


def trace_of_a_run(executor: SimulatedExecutor) -> list[IterationRecord]:
    engine = Engine(executor, SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=512), CacheConfig())
    records = []
    for i in range(30):
        engine.add_request(Request(f"r{i}", list(range(10, 20 + 31 * i)), SamplingParams(max_tokens=1 + i % 7)))
        records.append(engine.step()[1])
    while engine.has_work:
        records.append(engine.step()[1])
    return records


def test_the_same_run_has_the_same_trace_to_the_nanosecond() -> None:
    assert trace_of_a_run(make_executor()) == trace_of_a_run(make_executor())


def test_only_steps_move_the_clock_and_each_by_what_it_takes() -> None:
    executor = make_executor(FixedStepTime(0.010, 0.001))
    executor.profile_memory(2048, 64)
    executor.allocate_kv(100, 16)
    assert executor.clock.now_ns() == 0
    for _ in range(3):
        result = executor.execute(step([(0, 5, False), (7, 1, True)]))
        assert result.device_time_ns == 16_000_000
        assert result.token_ids == [0]
    assert executor.clock.now_ns() == 48_000_000


def test_swapped_blocks_take_their_time_before_the_tokens_do() -> None:
    executor = make_executor(FixedStepTime(0.010, 0.001, per_swapped_block_s=0.002))
    executor.allocate_kv(100, 16, 50)
    plan = step([(7, 1, True)])
    plan.swap_out, plan.swap_in = [(1, 0), (2, 1)], [(2, 9)]
    assert executor.execute(plan).device_time_ns == 17_000_000
    assert executor.execute(StepPlan(swap_in=[(0, 5)])).device_time_ns == 2_000_000
    assert executor.execute(StepPlan(swap_in=[(0, 5)])).token_ids == []
    assert executor.clock.now_ns() == 21_000_000


def test_the_link_is_the_cards_and_known_once_there_is_swap_space() -> None:
    executor = make_executor()
    executor.allocate_kv(100, 16)
    assert executor.host_link_bytes_per_s is None
    executor.allocate_kv(100, 16, 10)
    assert executor.host_link_bytes_per_s == pytest.approx(31.5e9 * 0.8)
    plan = StepPlan(swap_out=[(block, block) for block in range(10)])
    expected_ns = 10 * executor.kv_bytes_per_block(16) / (31.5e9 * 0.8) * 1e9
    assert executor.execute(plan).device_time_ns == pytest.approx(expected_ns, abs=1)
    fixed = make_executor(FixedStepTime(0.010, per_swapped_block_s=0.002))
    fixed.allocate_kv(100, 16, 10)
    assert fixed.host_link_bytes_per_s == fixed.kv_bytes_per_block(16) / 0.002


def test_busy_time_is_all_of_the_time() -> None:
    for record in trace_of_a_run(make_executor()):
        assert record.device_time_ns == record.execute_time_ns == record.t_end - record.t_start


@given(tokens=st.integers(1, 16_384), seats=st.integers(1, 1024), more=st.integers(0, 16_384))
def test_a_larger_step_needs_no_less_memory(tokens: int, seats: int, more: int) -> None:
    executor = make_executor()
    small = executor.profile_memory(tokens, seats)
    large = executor.profile_memory(tokens + more, seats + more)
    assert 0 < small.peak_activation <= large.peak_activation
    assert small.weights == large.weights == ARCH.weight_bytes(2)


def test_a_blocks_bytes_are_those_of_its_tokens() -> None:
    # Keys and values of 28 layers with 4 KV heads of 128, two bytes each.
    assert make_executor().kv_bytes_per_block(16) == 16 * 2 * 28 * 4 * 128 * 2


def test_what_other_holders_take_stays_a_small_share_of_a_small_device() -> None:
    assert make_executor(memory=GIB).profile_memory(64, 8).other <= GIB // 40
    assert make_executor(memory=80 * GIB).profile_memory(64, 8).other == GIB // 2
