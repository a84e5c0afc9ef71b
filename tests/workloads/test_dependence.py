"""How many independent requests a dependent sample is worth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.signal import lfilter

from workloads.dependence import correlation_time, dependence_of_mean, dependence_of_share


def autoregressive(seed, correlation, repeats, n):
    noise = np.random.default_rng(seed).standard_normal((repeats, n))
    noise[:, 1:] *= np.sqrt(1 - correlation**2)
    return lfilter([1.0], [1.0, -correlation], noise, axis=1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", [59, 300])
def test_independent_values_count_in_full_in_nineteen_of_twenty_samples(seed, n):
    values = np.random.default_rng(seed).lognormal(size=(400, n))
    assert (dependence_of_share(values, 0.95) == 1).mean() > 0.92
    assert (dependence_of_mean(values) == 1).mean() > 0.92


@pytest.mark.parametrize("correlation", [0.3, 0.6, 0.9])
def test_the_correlation_time_of_an_autoregression_is_found_from_above(correlation):
    truth = (1 + correlation) / (1 - correlation)
    found = correlation_time(autoregressive(7, correlation, 300, 2000))
    assert (found >= truth).mean() > 0.8
    assert truth < np.median(found) < 2 * truth


@pytest.mark.parametrize("seed", range(2))
def test_no_miss_is_needed_to_see_that_requests_are_late_together(seed):
    values = np.exp(autoregressive(seed, 0.9, 1, 500))
    assert dependence_of_share(values, 0.95)[0] > 5


def test_requests_that_never_answered_in_a_row_are_late_together():
    values = np.r_[np.ones(150), np.full(50, np.inf)]
    assert dependence_of_share(values, 0.95) > 20


def test_a_constant_or_tiny_sample_is_taken_as_independent():
    for values in (np.full(100, 3.3), np.full(100, np.inf), np.array([1.0, 2.0, 3.0])):
        assert dependence_of_share(values, 0.95) == 1


def test_values_that_alternate_do_not_count_more_than_once():
    values = np.tile([1.0, 2.0], 100)
    assert dependence_of_share(values, 0.5) == 1
    assert dependence_of_mean(values) == 1


@given(arrays(np.float64, st.integers(1, 80), elements=st.floats(0, 1e6)), st.floats(0.5, 0.999))
def test_dependence_is_finite_at_least_one_and_the_same_in_any_unit(values, share):
    found = float(dependence_of_share(values, share))
    assert 1 <= found < np.inf
    assert float(dependence_of_share(values * 1024.0, share)) == found


def test_rows_are_judged_each_for_itself():
    rows = autoregressive(3, 0.7, 5, 200)
    together = dependence_of_share(rows, 0.95)
    assert together == pytest.approx([float(dependence_of_share(row, 0.95)) for row in rows])
