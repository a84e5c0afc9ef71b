"""Fitting step times and memory: known devices are recovered, through jitter, outliers and few sizes."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.optimize

from engine.errors import UserError
from engine.executor.step_times import StepShape
from tuner.twin.fit import fit_memory, fit_step_times, measured_steps


def steps(count: int, seed: int) -> StepShape:
    """Steps of a server: decodes with some context, a chunk of prefill in a third of them."""
    rng = np.random.RandomState(seed)
    decode = rng.randint(0, 64, count)
    prefill = np.where(rng.random_sample(count) < 0.35, rng.randint(1, 800, count), 0)
    decode = np.where((decode == 0) & (prefill == 0), 1, decode)
    context = decode * rng.randint(100, 900, count) + prefill
    attended = decode * 500 + prefill * (prefill + 1) // 2
    return StepShape(*(a.astype(float) for a in (decode + (prefill > 0), prefill, decode, attended, context)))


def a_device(shape: StepShape) -> np.ndarray:
    tokens = shape.prefill_tokens + shape.decode_tokens
    bound_by_weights = np.maximum(0.008, 0.00006 * tokens)
    return bound_by_weights + 2e-8 * shape.context_tokens + 3e-10 * shape.attended_tokens + 2e-5 * shape.requests


def typical_error(shape: StepShape, seconds: np.ndarray, true: np.ndarray) -> float:
    return float(np.median(np.abs(fit_step_times(shape, seconds).seconds(shape) / true - 1)))


@pytest.mark.parametrize("seed", [0, 1])
def test_a_device_bound_by_weights_and_then_by_arithmetic_is_recovered(seed: int) -> None:
    shape = steps(3000, seed)
    assert typical_error(shape, a_device(shape), a_device(shape)) < 0.04


@pytest.mark.parametrize("seed", [0, 1])
def test_jitter_and_the_hiccups_of_a_shared_machine_do_not_pull_the_fit(seed: int) -> None:
    shape, rng = steps(3000, seed), np.random.RandomState(seed)
    true = a_device(shape)
    seconds = true * np.exp(0.05 * rng.standard_normal(3000))
    hiccups = rng.random_sample(3000) < 0.05
    seconds[hiccups] *= rng.uniform(2, 20, hiccups.sum())
    assert typical_error(shape, seconds, true) < 0.05
    learnt = fit_step_times(shape, seconds)
    spread = learnt.jitter[len(learnt.jitter) * 3 // 4] - learnt.jitter[len(learnt.jitter) // 4]
    assert spread == pytest.approx(2 * 0.674 * 0.05, rel=0.5)


def test_weights_are_never_negative() -> None:
    shape, rng = steps(500, 3), np.random.RandomState(3)
    assert min(fit_step_times(shape, rng.uniform(0.01, 0.02, 500)).weights) >= 0


def test_what_no_step_had_weighs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solving may leave a grain of it, as it did once in a study, and a step that has it would take for ever."""
    solve = scipy.optimize.nnls

    def with_grains(matrix: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, float]:
        weights, rest = solve(matrix, target)
        return weights + 5e-19, rest

    monkeypatch.setattr(scipy.optimize, "nnls", with_grains)
    full = steps(300, 4)
    shape = full._replace(prefill_tokens=np.minimum(full.prefill_tokens, 300.0))
    large = StepShape(*(np.array([value]) for value in (33.0, 4000.0, 32.0, 8e6, 2e4)))
    assert fit_step_times(shape, a_device(shape)).seconds(large)[0] < 10


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_the_memory_of_the_jitter_is_learnt(memory: float) -> None:
    shape, rng = steps(4000, 5), np.random.RandomState(5)
    score, scores = 0.0, []
    for noise in rng.standard_normal(4000):
        score = memory * score + np.sqrt(1 - memory**2) * noise
        scores.append(score)
    learnt = fit_step_times(shape, a_device(shape) * np.exp(0.1 * np.array(scores)))
    assert learnt.memory == pytest.approx(memory, abs=0.1)


def test_what_was_seen_is_kept_so_that_extrapolation_can_be_told() -> None:
    shape = steps(200, 7)
    learnt = fit_step_times(shape, a_device(shape))
    assert learnt.steps == 200
    assert learnt.largest.prefill_tokens == shape.prefill_tokens.max()


def test_one_size_of_steps_can_be_learnt_from_too() -> None:
    shape = StepShape(*(np.full(100, value) for value in (4.0, 0.0, 4.0, 400.0, 400.0)))
    learnt = fit_step_times(shape, np.full(100, 0.02))
    assert learnt.seconds(StepShape(4, 0, 4, 400, 400)) == pytest.approx(0.02, rel=0.01)


def test_too_few_steps_are_refused() -> None:
    shape = steps(10, 0)
    with pytest.raises(UserError, match="10 steps are too few"):
        fit_step_times(shape, a_device(shape))


def frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    names: tuple[str, ...] = (
        "t_start",
        "t_end",
        "prefill_seqs",
        "decode_seqs",
        "prefill_tokens",
        "decode_tokens",
        "attended_tokens",
    )
    names += ("context_tokens", "swapped_in_blocks", "swapped_out_blocks")
    return pd.DataFrame([dict.fromkeys(names, 0) | row for row in rows])


def test_the_host_time_between_steps_belongs_to_the_next_but_an_idle_pause_does_not() -> None:
    rows = [(0, 10), (12, 20), (70, 80)]
    iterations = frame(
        [{"t_start": a * 10**6, "t_end": b * 10**6, "decode_seqs": 1, "decode_tokens": 1} for a, b in rows]
    )
    _, seconds = measured_steps(iterations)
    assert seconds.tolist() == pytest.approx([0.010, 0.010, 0.010])


def test_steps_without_work_and_steps_that_swap_are_left_out() -> None:
    work = {"decode_seqs": 1, "decode_tokens": 1}
    iterations = frame(
        [{"t_end": 5}, {"t_end": 9, **work, "swapped_in_blocks": 1}, {"t_start": 9, "t_end": 20, **work}]
    )
    shape, seconds = measured_steps(iterations)
    assert len(seconds) == len(shape.requests) == 1


def memories(*peaks: int) -> list[dict[str, int]]:
    return [{"total_bytes": 9, "weights_bytes": 5, "other_bytes": 1, "peak_activation_bytes": peak} for peak in peaks]


def sizes(*tokens: int) -> list[dict[str, int]]:
    return [{"max_num_batched_tokens": number} for number in tokens]


def test_memory_of_other_sizes_follows_from_a_few() -> None:
    model = fit_memory(memories(1000 + 512 * 30, 1000 + 2048 * 30, 1000 + 512 * 30), sizes(512, 2048, 512))
    assert model.profile(1024).peak_activation == pytest.approx(1000 + 1024 * 30, rel=0.01)
    assert (model.profile(1024).total, model.profile(1024).weights) == (9, 5)


def test_memory_of_one_size_is_put_down_to_its_tokens() -> None:
    model = fit_memory(memories(51200), sizes(512))
    assert model.profile(1024).peak_activation == 102400
