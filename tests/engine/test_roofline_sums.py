"""The roofline sums a step up in closed form: the result is that of its shares taken one by one."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.executor.roofline import CARDS, Roofline
from engine.model.presets import preset_arch
from engine.request import Request, SamplingParams
from engine.scheduler.plan import ScheduledRequest, StepPlan

REQUEST = Request("a", [1], SamplingParams())
WINDOW = 1000

CHUNKS = st.tuples(st.integers(0, 5000), st.integers(1, 3000), st.booleans())
DECODES = st.tuples(st.integers(1, 5000), st.just(1), st.just(True))
SHARES = st.lists(CHUNKS | DECODES, min_size=1, max_size=12)


def one_by_one(model: Roofline, shares: list[tuple[int, int, bool]]) -> float:
    """Seconds of a step of (computed tokens, new tokens, yields a token) per request."""
    arch, card = model.arch, model.card
    flops = read = 0
    for computed, new, samples in shares:
        flops += new * arch.flops_per_token(computed + (new + 1) // 2) + samples * arch.logits_flops
        read += new + (computed if arch.sliding_window is None else min(computed, arch.sliding_window - 1))
    moved = arch.weight_bytes(model.bytes_per_element) + read * arch.kv_bytes_per_token(model.bytes_per_element)
    compute_s = flops / (card.tflops * 1e12 * model.compute_efficiency)
    memory_s = moved / (card.bandwidth_gb_s * 1e9 * model.bandwidth_efficiency)
    return max(compute_s, memory_s) + model.overhead_s + model.overhead_per_seq_s * len(shares)


@pytest.mark.parametrize("window", [None, WINDOW, 1])
@pytest.mark.parametrize("name", ["qwen2.5-7b", "smollm2-135m"])
@given(shares=SHARES)
def test_a_step_takes_what_its_shares_one_by_one_add_up_to(
    name: str, window: int | None, shares: list[tuple[int, int, bool]]
) -> None:
    model = Roofline(dataclasses.replace(preset_arch(name), sliding_window=window), CARDS["a10"])
    plan = StepPlan([ScheduledRequest(REQUEST, done, new, samples, False) for done, new, samples in shares])
    assert model.seconds(plan) == one_by_one(model, shares)


def test_another_card_or_efficiency_is_not_served_from_what_was_computed_for_the_first() -> None:
    plan = StepPlan([ScheduledRequest(REQUEST, 500, 1, True, True)])
    first = Roofline(preset_arch("qwen2.5-7b"), CARDS["a10"])
    assert first.seconds(plan) > dataclasses.replace(first, bandwidth_efficiency=0.9).seconds(plan)
    assert first.seconds(plan) > dataclasses.replace(first, card=CARDS["h100"]).seconds(plan)
    assert dataclasses.replace(first) == first
