"""What a point adds to a front: the hypervolume in exact cases, and what must hold for any."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.strategies.front_gain import FrontGain

merits = st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=1, max_size=6)


def added(front: Sequence[Sequence[float]], point: Sequence[float]) -> float:
    return float(FrontGain(front).share(np.array([point]))[0])


def exact_area(front: list[tuple[float, float]], behind: tuple[float, float]) -> float:
    """Area between a point behind everything and the staircase of a front."""
    area, height = 0.0, behind[1]
    for x, y in sorted(front, reverse=True):
        if y > height:
            area += (x - behind[0]) * (y - height)
            height = y
    return area


def test_of_one_objective_the_gain_is_the_lead_over_the_best() -> None:
    """The volume begins one behind the worst member, 2 behind the best."""
    assert added([(1.0,), (2.0,)], (2.5,)) == pytest.approx(0.25)
    assert added([(1.0,), (2.0,)], (1.5,)) == 0


def test_a_front_that_becomes_better_by_a_hundredth_gains_a_hundredth() -> None:
    assert added([(0.0, 0.0)], (0.01, 0.0)) == pytest.approx(0.01, rel=0.1)


@given(front=merits, point=st.tuples(st.floats(-3, 3), st.floats(-3, 3)))
def test_two_objectives_gain_what_the_area_gains(front: list[tuple[float, float]], point: tuple[float, float]) -> None:
    behind = min(x for x, _ in front) - 1, min(y for _, y in front) - 1
    before = exact_area(front, behind)
    after = exact_area([*front, (max(point[0], behind[0]), max(point[1], behind[1]))], behind)
    assert added(front, point) == pytest.approx(after / before - 1, abs=0.02 + 0.1 * (after / before - 1))


@given(front=merits)
def test_what_the_front_dominates_adds_nothing(front: list[tuple[float, float]]) -> None:
    assert added(front, front[0]) == 0
    assert added(front, (front[0][0] - 0.5, front[0][1])) == 0
