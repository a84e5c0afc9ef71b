"""Values that are only known to lie below a bound: what they come to in a Gaussian process."""

import random

import numpy as np
import pytest

from tuner.twin.bounded import take_in

NOISE = 0.04


def posterior(among: np.ndarray, values: list[float], are_bounds: list[bool]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the process where something was seen."""
    sites, _ = take_in(among, np.array(values), np.array(are_bounds), NOISE)
    mean = among @ sites.solve(sites.values)
    shrunk = np.array([sites.solve(column) for column in among])
    return mean, np.diag(among - among @ shrunk.T)


@pytest.mark.parametrize("bound", [-0.2, -0.05, 0.0, 0.1])
def test_one_bound_gives_the_moments_of_the_truncated_value(bound: float) -> None:
    """Against sums over a fine grid."""
    size = 0.08
    mean, variance = posterior(np.array([[size**2]]), [bound], [True])
    from scipy.stats import norm

    places = np.linspace(-1, 1, 20_001)
    weights = norm.pdf(places, scale=size) * norm.cdf((bound - places) / NOISE)
    expected = (places * weights).sum() / weights.sum()
    assert mean[0] == pytest.approx(expected, abs=1e-5)
    assert variance[0] == pytest.approx(((places - expected) ** 2 * weights).sum() / weights.sum(), rel=1e-3)


def test_a_bound_far_above_says_nothing() -> None:
    among = np.array([[0.01, 0.005], [0.005, 0.01]])
    mean, variance = posterior(among, [0.02, 5.0], [False, True])
    alone, alone_variance = posterior(among[:1, :1], [0.02], [False])
    assert mean[0] == pytest.approx(alone[0], abs=1e-6)
    assert variance[0] == pytest.approx(alone_variance[0], abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_several_bounds_agree_with_drawing_from_the_process(seed: int) -> None:
    rng = np.random.default_rng(seed)
    print("seed", seed)
    points = rng.random((4, 2))
    among = 0.08**2 * np.exp(-2 * ((points[:, None] - points[None]) ** 2).sum(axis=2))
    values, are_bounds = [0.03, -0.04, -0.02, 0.0], [False, True, True, True]
    draws = rng.multivariate_normal(np.zeros(4), among, size=400_000)
    from scipy.stats import norm

    weights = norm.pdf(values[0], loc=draws[:, 0], scale=NOISE)
    for i in (1, 2, 3):
        weights = weights * norm.cdf((values[i] - draws[:, i]) / NOISE)
    drawn = (draws * weights[:, None]).sum(axis=0) / weights.sum()
    mean, _ = posterior(among, values, are_bounds)
    assert mean == pytest.approx(drawn, abs=0.004)


@pytest.mark.parametrize("seed", range(3))
def test_a_lower_bound_never_raises_what_is_expected(seed: int) -> None:
    rng = random.Random(seed)
    among = 0.01 * np.array([[1.0, 0.6], [0.6, 1.0]])
    bounds = sorted(rng.uniform(-0.3, 0.3) for _ in range(6))
    means = [posterior(among, [0.0, bound], [False, True])[0][1] for bound in bounds]
    assert means == sorted(means)
