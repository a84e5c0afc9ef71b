"""The budget of wall time, on a clock that moves when told."""

import pytest

from tuner.budget import Budget


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_time_counts_from_the_start(clock: FakeClock) -> None:
    budget = Budget(60.0, clock=clock)
    assert (budget.spent_s, budget.left_s) == (0.0, 60.0)
    clock.now_s += 25.0
    assert (budget.spent_s, budget.left_s) == (25.0, 35.0)


def test_it_allows_exactly_what_is_left(clock: FakeClock) -> None:
    budget = Budget(60.0, clock=clock)
    clock.now_s += 25.0
    assert budget.allows(35.0)
    assert not budget.allows(35.1)


def test_time_of_earlier_processes_counts_too(clock: FakeClock) -> None:
    budget = Budget(60.0, spent_before_s=50.0, clock=clock)
    clock.now_s += 15.0
    assert (budget.spent_s, budget.left_s) == (65.0, -5.0)
    assert not budget.allows(0.0)


def test_no_limit_allows_everything_and_still_counts(clock: FakeClock) -> None:
    budget = Budget(None, spent_before_s=7.0, clock=clock)
    clock.now_s += 1.0
    assert budget.left_s is None
    assert budget.allows(1e12)
    assert budget.spent_s == 8.0
