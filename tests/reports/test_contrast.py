"""When the runs of two values can be told apart."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reports.contrast import Standing, contrast


def standing(*values: float, label: str = "x") -> Standing:
    return Standing(label, dict(enumerate(values)))


def test_one_run_of_each_names_what_it_saw_and_no_interval():
    found = contrast(standing(120.0), standing(100.0))
    assert (found.repeats, found.low, found.told_apart) == (1, None, True)
    assert found.change == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ((110.0, 220.0), (100.0, 200.0), True),  # the seed doubles both, the setting adds 10 % to each
        ((110.0, 190.0), (100.0, 200.0), False),  # they disagree on the direction
        ((102.0, 130.0), (100.0, 100.0), False),  # they agree, but on anything from 2 to 30 %
        ((122.0, 130.0), (100.0, 100.0), True),
    ],
)
def test_two_repeats_tell_apart_only_what_exceeds_their_own_disagreement(one, other, apart):
    found = contrast(standing(*one), standing(*other))
    assert found.told_apart is apart
    assert found.low is None
    assert found.changes == pytest.approx([a / b - 1 for a, b in zip(one, other, strict=True)])


def test_ranges_that_overlap_are_told_apart_where_every_pair_agrees():
    seeds = (50.0, 100.0, 200.0, 400.0)
    better = [seed * (1 + gain) for seed, gain in zip(seeds, (0.10, 0.11, 0.10, 0.12), strict=True)]
    assert contrast(standing(*better), standing(*seeds)).told_apart


def test_only_repeats_of_the_same_seed_are_compared():
    one, other = Standing("a", {0: 110.0, 2: 330.0}), Standing("b", {0: 100.0, 1: 900.0, 2: 300.0})
    assert contrast(one, other).changes == pytest.approx([0.1, 0.1])
    assert not contrast(Standing("a", {0: 1.0}), Standing("b", {1: 2.0})).told_apart


def test_numbers_of_0_are_told_apart_by_their_differences_and_give_no_ratio():
    found = contrast(standing(5.0, 5.1, 4.9), standing(0.0, 0.0, 0.0))
    assert (found.told_apart, found.low, found.change) == (True, None, None)


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=3, max_size=8))
def test_with_three_repeats_and_more_it_is_the_paired_t_interval_of_the_log_ratios(pairs):
    one, other = (np.array(values) for values in zip(*pairs, strict=True))
    found = contrast(standing(*one), standing(*other))
    logs = np.log(one / other)
    reach = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))
    assert found.low is not None
    assert found.high is not None
    assert math.log1p(found.low) == pytest.approx(logs.mean() - reach, abs=1e-9)
    assert math.log1p(found.high) == pytest.approx(logs.mean() + reach, abs=1e-9)
    if found.told_apart:
        assert not logs.mean() - reach < -1e-9 < 1e-9 < logs.mean() + reach


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("values", [2, 4])
def test_among_equal_values_one_is_rarely_called_the_best(values, seed):
    """The best of several is picked for being best: the level must hold for all pairs together."""
    rng = np.random.RandomState(seed)
    pairs, wrong, trials = values * (values - 1) // 2, 0, 300
    for _ in range(trials):
        common = rng.normal(0, 0.3, size=4)
        standings = [standing(*np.exp(common + rng.normal(0, 0.1, size=4))) for _ in range(values)]
        ranked = sorted(standings, key=lambda s: s.middle)
        wrong += contrast(ranked[-1], ranked[0], pairs).told_apart
    assert wrong / trials < 0.08
