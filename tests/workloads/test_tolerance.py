"""A bound far above all latencies is decided by their distance from it, and one near them is not."""

import math
import random
from collections.abc import Callable

import pytest

from workloads.tolerance import lies_far_above

# Of a lognormal with sigma 0.5: its 95 % quantile.
P95 = math.exp(0.5 * 1.6449)


def independent(rng: random.Random, count: int) -> list[float]:
    return [math.exp(0.5 * rng.gauss(0, 1)) for _ in range(count)]


def dependent(rng: random.Random, count: int) -> list[float]:
    """Neighbours are correlated by 0.9, the distribution is the same."""
    score, values = rng.gauss(0, 1), []
    for _ in range(count):
        score = 0.9 * score + math.sqrt(1 - 0.81) * rng.gauss(0, 1)
        values.append(math.exp(0.5 * score))
    return values


@pytest.mark.parametrize(("draw", "requests"), [(independent, 40), (dependent, 200)])
def test_at_the_bound_it_is_seldom_called_far(draw: Callable[[random.Random, int], list[float]], requests: int) -> None:
    rng = random.Random(3)
    called = sum(lies_far_above(P95, draw(rng, requests), 0.95, 0.05) for _ in range(300))
    assert called <= 0.08 * 300, called


@pytest.mark.parametrize(("draw", "times"), [(independent, 2.5), (dependent, 8.0)])
def test_a_bound_far_above_is_told(draw: Callable[[random.Random, int], list[float]], times: float) -> None:
    rng = random.Random(4)
    called = sum(lies_far_above(times * P95, draw(rng, 200), 0.95, 0.05) for _ in range(50))
    assert called >= 30, called


def test_a_value_beyond_the_bound_or_without_a_logarithm_says_nothing() -> None:
    values = [1.0 + i / 100 for i in range(50)]
    assert lies_far_above(100.0, values, 0.95, 0.05)
    assert not lies_far_above(100.0, [*values, 101.0], 0.95, 0.05)
    assert not lies_far_above(100.0, [*values, 0.0], 0.95, 0.05)
    assert not lies_far_above(100.0, values[:5], 0.95, 0.05)
