"""How far a difference can be off, on numbers whose spread is known."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reports.diff.estimate import Reading
from reports.diff.scale import scale_for
from reports.diff.spread import Squares, estimate, repeats_of


def readings(*values: tuple[int, str, float]) -> list[Reading]:
    return [Reading(*value) for value in values]


def one_each(values: Sequence[float], session: str = "a", first_seed: int = 0) -> list[Reading]:
    return [Reading(first_seed + i, session, value) for i, value in enumerate(values)]


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=2, max_size=8))
def test_pairs_alone_give_the_paired_t_interval(pairs: list[tuple[float, float]]) -> None:
    base, new = (one_each([pair[i] for pair in pairs]) for i in (0, 1))
    found = estimate(base, new)
    assert found is not None
    differences = np.array([b - a for a, b in pairs])
    assert found.design == "paired"
    assert found.difference == pytest.approx(differences.mean(), abs=1e-9)
    assert found.freedom == len(pairs) - 1
    assert found.variance == pytest.approx(differences.var(ddof=1) / len(pairs), abs=1e-9)


def test_what_a_seed_does_to_both_sides_cancels() -> None:
    found = estimate(one_each([1.0, 5.0, 9.0]), one_each([1.1, 5.2, 9.0]))
    assert found is not None
    assert found.difference == pytest.approx(0.1)
    assert found.variance == pytest.approx(0.01 / 3)


def test_repeats_of_a_seed_on_either_side_add_degrees_of_freedom() -> None:
    base = readings((0, "a", 1.0), (0, "a", 1.2), (1, "a", 2.1))
    new = readings((0, "a", 1.1), (1, "a", 2.1), (1, "a", 2.3))
    found = estimate(base, new)
    assert found is not None
    # Pairs 0.0 and 0.1, each of weight 1 / (1 / 2 + 1).
    squares = Squares(2 / 3 * 2 * 0.05**2, 1) + Squares(0.02, 1) + Squares(0.02, 1)
    assert found.freedom == squares.freedom == 3
    assert found.variance == pytest.approx(squares.mean / (4 / 3))


def test_pairs_that_vary_visibly_more_than_repeats_are_judged_by_themselves() -> None:
    base, new = one_each([0.0, 0.0, 0.0]), one_each([0.5, -0.5, 0.1])
    quiet = readings(*((9, "b", 1 + 0.001 * i) for i in range(6)))
    found = estimate(base, new, [quiet])
    assert found is not None
    assert found.freedom == 2


@pytest.mark.parametrize(("pairs", "freedom"), [(2, 1), (3, 2), (4, 3 + 2), (5, 4 + 2)])
def test_repeats_of_another_time_join_only_where_there_are_pairs_enough_to_object(pairs: int, freedom: int) -> None:
    base, new = one_each([0.0] * pairs), one_each([0.1 * (-1) ** i for i in range(pairs)])
    stored = readings((7, "c", 5.0), (7, "c", 5.2), (7, "c", 5.1))
    found = estimate(base, new, [stored])
    assert found is not None
    assert found.freedom == freedom
    if pairs == 2:
        assert estimate(base[:1], new[:1], [stored]) is None


@pytest.mark.parametrize("pairs", [2, 3, 4, 5])
@pytest.mark.parametrize("louder", [1.0, 2.0, 20.0])
def test_a_quiet_night_on_record_gives_no_more_false_alarms_on_a_louder_day(pairs: int, louder: float) -> None:
    rng, trials = np.random.default_rng(pairs), 600
    alarms = 0
    for _ in range(trials):
        base, new = (one_each(rng.normal(0.0, louder, pairs).tolist()) for _ in range(2))
        night = [Reading(99, "night", float(value)) for value in rng.normal(0.0, 1.0, 13)]
        found = estimate(base, new, [night])
        assert found is not None
        alarms += found.exceeds(0.0) <= 0.05
    # One in twenty, and three standard errors of counting.
    assert alarms / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


def test_one_pair_and_no_repeat_say_nothing_of_the_spread() -> None:
    assert estimate(one_each([1.0]), one_each([2.0])) is None
    assert estimate(one_each([1.0]), one_each([2.0], first_seed=5)) is None


def test_runs_without_a_common_seed_are_compared_by_what_differs_between_seeds() -> None:
    ours, theirs = [1.0, 1.4, 1.2], [2.0, 2.2, 2.4, 2.6]
    found = estimate(one_each(ours), one_each(theirs, first_seed=10))
    assert found is not None
    expected = stats.ttest_ind(theirs, ours, equal_var=True)
    low, high = expected.confidence_interval(0.90)
    assert (found.design, found.freedom) == ("unpaired", 5)
    assert found.interval(0.05) == pytest.approx((low, high))
    assert 2 * found.exceeds(0.0) == pytest.approx(expected.pvalue)


def test_sessions_that_agree_are_pooled_and_known_only_when_there_are_enough() -> None:
    def side(sessions: str) -> list[Reading]:
        return [Reading(seed, s, seed + off) for s in sessions for seed in (0, 1) for off in (-0.1, 0.1)]

    few, many = estimate(side("ab"), side("c")), estimate(side("abcd"), side("ef"))
    assert few is not None
    assert many is not None
    assert (few.design, few.has_sessions) == ("paired", False)
    assert (many.design, many.has_sessions) == ("paired", True)


def test_sessions_that_differ_are_compared_as_wholes() -> None:
    base = readings(*((seed, s, seed + day) for s, day in (("a", 0.0), ("b", 0.4)) for seed in (0, 1)))
    new = readings(*((seed, s, seed + day) for s, day in (("c", 0.1), ("d", 0.5), ("e", 0.3)) for seed in (0, 1)))
    base = [Reading(r.seed, r.session, r.value + 0.001 * i) for i, r in enumerate(base)]
    found = estimate(base, new)
    assert found is not None
    assert (found.design, found.freedom, found.has_sessions) == ("sessions", 3, True)
    spread = (np.var([0.0, 0.4], ddof=1) + 2 * np.var([0.1, 0.5, 0.3], ddof=1)) / 3
    assert found.variance == pytest.approx(spread * (1 / 2 + 1 / 3), rel=0.02)


def test_only_pairs_of_a_common_session_count_where_there_are_any() -> None:
    base = readings((0, "a", 1.0), (1, "a", 2.0), (0, "old", 9.0))
    new = readings((0, "a", 1.1), (1, "a", 2.1))
    found = estimate(base, new)
    assert found is not None
    assert found.difference == pytest.approx(0.1)
    assert found.has_sessions


def test_without_any_spread_the_difference_is_certain() -> None:
    found = estimate(one_each([1.0, 2.0, 3.0]), one_each([1.5, 2.5, 3.5]))
    assert found is not None
    assert found.interval(0.05) == pytest.approx((0.5, 0.5))
    assert (found.exceeds(0.0), found.exceeds(0.5), found.falls_short(0.5)) == (0.0, 1.0, 1.0)


def test_repeats_count_within_a_session_only() -> None:
    side = readings((0, "a", 1.0), (0, "a", 3.0), (0, "b", 100.0), (1, "a", 7.0))
    assert repeats_of([side]) == Squares(2.0, 1)


def test_numbers_above_0_are_compared_by_their_ratio_others_by_their_share_of_the_base() -> None:
    ratio = scale_for([100.0], [110.0])
    assert ratio.change(ratio.value(110.0) - ratio.value(100.0)) == pytest.approx(0.1)
    share = scale_for([4.0, 0.0], [1.0])
    assert (share.relative, share.value(1.0) - share.value(2.0)) == (True, pytest.approx(-0.5))
    plain = scale_for([0.0], [3.0])
    assert (plain.relative, plain.value(3.0), plain.limit(0.05)) == (False, 3.0, 0.0)
    assert math.isfinite(ratio.change(1e9))
