"""The made-up devices: their law is not one that the twin could learn whole, and their noise is new in every run."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from engine.request import Request, SamplingParams
from engine.scheduler.plan import ScheduledRequest, StepPlan
from scripts.search_proof.pairs import PAIRS
from scripts.search_proof.truth import GRAPH_SIZES, Device, Noise, TruthTimes

DEVICES = {pair.name: pair.device for pair in PAIRS.values()}
QUIET = Noise(spread=0.0, memory=0.0, hiccup_share=0.0, drift=0.0)


def step(*, chunks: tuple[int, ...] = (), decodes: int = 0, context: int = 100) -> StepPlan:
    request = Request("r", [0], SamplingParams())
    shares = [ScheduledRequest(request, 0, tokens, samples=True, is_decode=False) for tokens in chunks]
    shares += [ScheduledRequest(request, context, 1, samples=True, is_decode=True)] * decodes
    return StepPlan(scheduled=shares, num_running=len(shares))


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_prompt_tokens_are_padded_to_tiles(device: Device) -> None:
    # Large enough for arithmetic to count; the square of the tokens is all that differs within a tile.
    device = dataclasses.replace(device, square_s=0.0)
    full = device.step_s(step(chunks=(device.tile * 40,)))
    assert device.step_s(step(chunks=(device.tile * 39 + 1,))) == full
    assert device.step_s(step(chunks=(device.tile * 39,))) < full


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_a_step_of_decodes_beyond_the_largest_graph_costs_the_host_more(device: Device) -> None:
    largest = GRAPH_SIZES[-1]
    jump = device.step_s(step(decodes=largest + 1)) - device.step_s(step(decodes=largest))
    assert jump > 0.9 * device.eager_s


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_prompts_and_decodes_in_one_step_disturb_each_other(device: Device) -> None:
    together = device.step_s(step(chunks=(256,), decodes=8))
    undisturbed = dataclasses.replace(device, disturbance=0.0).step_s(step(chunks=(256,), decodes=8))
    assert together > undisturbed


def test_the_larger_of_arithmetic_and_traffic_counts_not_their_sum() -> None:
    device = dataclasses.replace(DEVICES["first-token"], host_s=0.0, host_request_s=0.0, square_s=0.0)
    assert device.step_s(step(decodes=1, context=0)) == device.weights_s
    assert device.step_s(step(chunks=(2048,))) == 2048 * device.token_s


@pytest.mark.parametrize("seed", [0, 7])
def test_runs_differ_and_the_same_seed_repeats_them(seed: int) -> None:
    device = DEVICES["first-token"]

    def two_runs() -> list[list[float]]:
        times = TruthTimes(device, seed, lambda: 0.0)
        runs = []
        for _ in range(2):
            times.restart(0)
            runs.append([times.seconds(step(decodes=4)) for _ in range(50)])
        return runs

    first, second = two_runs()
    assert first != second
    assert two_runs() == [first, second]


def test_the_pace_drifts_with_the_time_on_the_device() -> None:
    device = dataclasses.replace(DEVICES["first-token"], noise=dataclasses.replace(QUIET, drift=0.05))
    now = SimpleNamespace(s=0.0)
    times = TruthTimes(device, 0, lambda: now.s)
    paces: set[Any] = set()
    for now.s in (0.0, 100.0, 200.0):
        times.restart(0)
        paces.add(times.seconds(step(decodes=4)))
    assert len(paces) == 3
