"""What is learnt of the twin's errors: near what was measured it is known, far away it is not."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.twin.correction import BIAS, Correction, Lead

POINTS = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8, unique=True)
ERRORS = st.lists(st.floats(-0.3, 0.3), min_size=8, max_size=8)


def test_without_measurements_nothing_is_known_but_how_large_errors_are() -> None:
    lead = Correction([], []).lead((0.0, 0.0), (1.0, 1.0))
    assert lead.mean == 0
    assert 0.03 < lead.deviation < 0.15
    assert Correction([], []).at((0.5, 0.5)) == 0


def test_an_error_that_all_settings_share_gives_none_a_lead() -> None:
    points = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 0.5)]
    correction = Correction(points, [0.25] * 5)
    assert correction.at((0.7, 0.3)) == pytest.approx(0.25, rel=0.1)
    assert correction.lead((0.7, 0.3), (0.0, 0.0)).mean == pytest.approx(0, abs=0.01)


def test_one_measurement_tells_the_shared_part() -> None:
    assert Correction([(0.5, 0.5)], [0.2]).at((0.0, 1.0)) > 0.1 * BIAS


def test_a_region_that_the_twin_flatters_is_marked_down_and_no_other() -> None:
    points = [(0.9, 0.9), (0.95, 0.8), (0.1, 0.1), (0.2, 0.05)]
    correction = Correction(points, [-0.3, -0.28, 0.0, 0.01])
    assert correction.lead((0.92, 0.88), (0.1, 0.1)).mean < -0.2
    assert abs(correction.lead((0.15, 0.1), (0.1, 0.1)).mean) < 0.03


@given(points=POINTS, errors=ERRORS)
def test_what_was_measured_is_better_known_than_what_is_far_away(
    points: list[tuple[float, float]], errors: list[float]
) -> None:
    correction = Correction(points, errors[: len(points)])
    near = correction.lead(points[0], (3.0, 3.0)).deviation
    assert 0 <= near <= correction.lead((-3.0, -3.0), (3.0, 3.0)).deviation + 1e-9
    assert correction.lead(points[0], points[0]) == pytest.approx((0.0, 0.0), abs=1e-6)


@given(mean=st.floats(-0.5, 0.5), deviation=st.floats(1e-3, 0.5))
def test_the_expected_gain_is_the_mean_of_what_lies_above_nothing(mean: float, deviation: float) -> None:
    gain = Lead(mean, deviation).expected_gain()
    steps = 4000
    places = [mean + deviation * (12 * (i + 0.5) / steps - 6) for i in range(steps)]
    density = [math.exp(-0.5 * ((x - mean) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi)) for x in places]
    by_sum = sum(max(0.0, x) * d for x, d in zip(places, density, strict=True)) * 12 * deviation / steps
    assert gain == pytest.approx(by_sum, abs=1e-4 + 1e-3 * deviation)
    assert gain >= max(0.0, mean) - 1e-12


def test_a_lead_that_is_certain_is_its_own_gain() -> None:
    assert Lead(0.1, 0.0).expected_gain() == 0.1
    assert Lead(-0.1, 0.0).expected_gain() == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_larger_errors_seen_make_larger_errors_likely_elsewhere(seed: int) -> None:
    rng = random.Random(seed)
    points = [(rng.random(), rng.random()) for _ in range(10)]
    small = Correction(points, [0.01 * rng.gauss(0, 1) for _ in points])
    large = Correction(points, [0.3 * rng.gauss(0, 1) for _ in points])
    away = (1.8, 1.8)
    assert small.lead(away, points[0]).deviation < large.lead(away, points[0]).deviation


def test_the_chance_of_a_lead() -> None:
    assert Lead(0.0, 1.0).chance_of(0.0) == 0.5
    assert Lead(1.0, 0.0).chance_of(0.0) == 1
    assert Lead(-1.0, 0.0).chance_of(0.0) == 0
    assert Lead(1.96, 1.0).chance_of(0.0) == pytest.approx(0.975, abs=1e-3)
    assert math.isclose(Lead(-1.0, 2.0).chance_of(0.0) + Lead(1.0, 2.0).chance_of(0.0), 1.0)
    assert Lead(0.0, 1.0).chance_of(1.0) == Lead(-1.0, 1.0).chance_of(0.0)
