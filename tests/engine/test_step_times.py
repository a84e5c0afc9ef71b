"""Step times that were learnt: the shape of a step, durations that grow with it, and a jitter like the device's."""

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import UserError
from engine.executor.step_times import TERMS, JitteredStepTimes, StepShape, StepTimes, shape_of
from engine.request import Request, SamplingParams
from engine.scheduler.plan import ScheduledRequest, StepPlan

LARGEST = StepShape(100, 5000, 100, 10**7, 10**6)
REQUEST = Request("a", [1], SamplingParams())


def times(jitter: tuple[float, ...] = (0.0, 0.0), memory: float = 0.0, **weights: float) -> StepTimes:
    return StepTimes(tuple(weights.get(name, 0.0) for name in TERMS), jitter, memory, LARGEST, 100)


def plan_of(*shares: tuple[int, int, bool]) -> StepPlan:
    """A step of (computed, tokens, decodes) per request."""
    return StepPlan([ScheduledRequest(REQUEST, done, new, True, decodes) for done, new, decodes in shares])


def test_the_shape_of_a_step_counts_every_token_that_a_token_attends_to() -> None:
    shape = shape_of(plan_of((10, 3, False), (7, 1, True)))
    assert shape == StepShape(2, 3, 1, 11 + 12 + 13 + 8, 13 + 8)


shapes = st.builds(StepShape, *(st.integers(0, 5000) for _ in StepShape._fields))
weights = st.lists(st.floats(0, 1e-3), min_size=len(TERMS), max_size=len(TERMS))


@given(weights, shapes, st.sampled_from(StepShape._fields), st.integers(1, 3000))
def test_no_step_takes_longer_than_one_with_more_in_it(
    some: list[float], shape: StepShape, part: str, more: int
) -> None:
    learnt = StepTimes(tuple(some), (0.0, 0.0), 0.0, LARGEST, 100)
    larger = shape._replace(**{part: getattr(shape, part) + more})
    assert learnt.seconds(larger) >= learnt.seconds(shape) - 1e-12


def test_a_duration_is_the_weighted_sum_of_its_terms() -> None:
    weights = {"fixed": 0.01, "prefill_tokens": 0.001, "tokens beyond 32": 0.1}
    learnt = StepTimes(tuple(weights.get(name, 0.0) for name in TERMS), (0.0, 0.0), 0.0, LARGEST, 100)
    assert learnt.seconds(StepShape(1, 40, 0, 0, 0)) == pytest.approx(0.01 + 0.04 + 0.8)


def test_a_step_well_beyond_what_was_seen_is_an_extrapolation() -> None:
    assert not times(fixed=1.0).extrapolates(LARGEST)
    assert times(fixed=1.0).extrapolates(LARGEST._replace(decode_tokens=126))


def test_equal_seeds_give_equal_durations_and_others_do_not() -> None:
    model = JitteredStepTimes(times(jitter=(-0.5, 0.0, 0.7), memory=0.5, fixed=0.01), 1e9)
    step = plan_of((7, 1, True))

    def run(seed: int) -> list[float]:
        model.restart(seed)
        return [model.seconds(step) for _ in range(50)]

    assert run(3) == run(3) != run(4)
    assert model.num_steps == 50


def test_the_jitter_has_the_quantiles_and_the_memory_that_were_measured() -> None:
    model = JitteredStepTimes(times(jitter=(-0.2, -0.1, 0.0, 0.1, 1.0), memory=0.8, fixed=0.01), 1e9)
    model.restart(0)
    step = plan_of((7, 1, True))
    logs = [math.log(model.seconds(step) / 0.01) for _ in range(20_000)]
    ranked = sorted(logs)
    assert ranked[5_000] == pytest.approx(-0.1, abs=0.02)
    assert ranked[15_000] == pytest.approx(0.1, abs=0.05)
    assert ranked[0] >= -0.2
    assert ranked[-1] <= 1.0
    slow = [value > 0.1 for value in logs]
    stay_slow = sum(a and b for a, b in pairwise(slow)) / sum(slow)
    assert stay_slow > 0.5, "a slow spell lasts"


def test_swapped_blocks_take_their_bytes_over_the_link() -> None:
    assert JitteredStepTimes(times(fixed=1.0), 1e9).swap_seconds(3, 500) == pytest.approx(1.5e-6)


def test_step_times_survive_their_file() -> None:
    learnt = times(jitter=(-0.1, 0.2), memory=0.3, fixed=0.01, decode_tokens=0.002)
    assert StepTimes.from_dict(json.loads(json.dumps(learnt.to_dict()))) == learnt


@pytest.mark.parametrize(
    "change",
    [{"weights": 3}, {"weights": {"unknown": 1.0}}, {"weights": {}}, {"jitter": []}, {"memory": 1.0}, {"largest": {}}],
    ids=str,
)
def test_damaged_step_times_are_refused(change: dict) -> None:
    with pytest.raises(UserError, match="fit them again"):
        StepTimes.from_dict(times(fixed=1.0).to_dict() | change)
