"""Bets on a share of misses: what they are worth, and that looking often does not make them err."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import beta, binom

from workloads.betting import stake_on_fewer, stake_on_more
from workloads.intervals import share_low


@pytest.mark.parametrize(("misses", "size", "allowed"), [(0, 59, 0.05), (3, 100, 0.1), (2.5, 40.5, 0.05)])
def test_a_stake_is_the_mean_likelihood_ratio_over_the_lower_rates(misses, size, allowed):
    def ratio(rate):
        return (rate / allowed) ** misses * ((1 - rate) / (1 - allowed)) ** (size - misses)

    prior = beta(0.5, 0.5)
    mean, _ = quad(lambda rate: ratio(rate) * prior.pdf(rate), 0, allowed, points=[1e-6, 1e-3], limit=200)
    assert float(stake_on_fewer(misses, size, allowed)) == pytest.approx(mean / prior.cdf(allowed), rel=1e-3)


@pytest.mark.parametrize("allowed", [0.05, 0.2, 0.5])
def test_a_bet_is_fair_where_misses_are_as_frequent_as_allowed(allowed):
    size = 30
    misses = np.arange(size + 1)
    chances = binom(size, allowed).pmf(misses)
    for stake in (stake_on_fewer, stake_on_more):
        assert float((chances * stake(misses, np.full(size + 1, size), allowed)).sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rate", [0.05, 0.07])
def test_looking_after_every_request_errs_at_most_once_in_twenty_times(seed, rate):
    missed = np.random.default_rng(seed).random((500, 500)) < rate
    misses, sizes = missed.cumsum(axis=1), np.broadcast_to(np.arange(1, 501), missed.shape)
    assert (stake_on_fewer(misses, sizes, 0.05) >= 20).any(axis=1).mean() <= 0.05


@given(size=st.integers(20, 1000), share=st.floats(0, 0.3), allowed=st.sampled_from([0.01, 0.05, 0.5]))
def test_a_bet_that_has_won_is_borne_out_by_the_exact_limits(size, share, allowed):
    misses = int(share * size)
    if stake_on_fewer(misses, size, allowed) >= 20:
        assert share_low(size - misses, size, 0.05) >= 1 - allowed


def test_a_p95_without_a_miss_is_held_after_74_independent_requests():
    first = next(n for n in range(1, 200) if stake_on_fewer(0, n, 0.05) >= 20)
    assert first == 74
