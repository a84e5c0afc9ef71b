"""The search for the highest rate held, against settings whose limit is known."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.rate_search import CAUTION, LEAD, FixedRate, RateRace, RateSearch, readable

RATES = st.floats(1e-3, 1e4)
# Rates are asked to three digits, so they are off by at most this much.
ROUNDING = 1.006


def play(strategy: RateSearch | RateRace, limit: float) -> list[float]:
    """Answer every question honestly; returns the rates that were asked."""
    asked = []
    while not strategy.is_over:
        rate = strategy.next_rate()
        asked.append(rate)
        strategy.record(rate, held=rate <= limit)
    return asked


@given(limit=RATES, start=RATES)
def test_bisection_finds_any_limit_from_any_start_within_its_tolerance(limit: float, start: float) -> None:
    search = RateSearch(start, max_runs=500)
    play(search, limit)
    assert search.held is not None
    assert search.failed is not None
    assert search.held <= limit < search.failed <= search.held * search.tolerance


@given(limit=RATES, factor=st.floats(0.42, 2.4))
def test_a_start_near_the_limit_needs_no_more_than_the_runs_allowed(limit: float, factor: float) -> None:
    search = RateSearch(limit * factor)
    asked = play(search, limit)
    assert len(asked) == search.runs <= search.max_runs
    assert search.held is not None
    assert search.held <= limit <= search.held * search.tolerance


@given(limit=RATES, start=RATES, max_runs=st.integers(1, 12))
def test_bisection_never_exceeds_its_runs_and_never_asks_twice(limit: float, start: float, max_runs: int) -> None:
    asked = play(RateSearch(start, max_runs=max_runs), limit)
    assert 1 <= len(asked) <= max_runs
    assert len(set(asked)) == len(asked)


@pytest.mark.parametrize("seed", range(20))
def test_contradicting_answers_leave_a_proper_bracket_and_an_end(seed: int) -> None:
    noise = random.Random(seed)
    search = RateSearch(4.0, max_runs=30)
    while not search.is_over:
        search.record(search.next_rate(), held=noise.random() < 0.5)
        assert search.held is None or search.failed is None or search.held < search.failed
    assert search.runs <= search.max_runs


def test_a_lower_rate_that_fails_is_believed_over_a_higher_one_that_held() -> None:
    search = RateSearch(4.0)
    search.record(4.0, held=True)
    search.record(3.0, held=False)
    assert search.held is None
    assert search.next_rate() < 3.0


@given(best=RATES, headroom=st.floats(0.01, LEAD / ROUNDING))
def test_a_setting_no_better_than_the_best_is_out_after_one_run(best: float, headroom: float) -> None:
    race = RateRace.against(best)
    asked = play(race, best * headroom)
    assert len(asked) == 1
    assert asked[0] > best
    assert race.held is None


@given(best=RATES, headroom=st.floats(LEAD * ROUNDING, 10.0))
def test_a_better_setting_climbs_to_its_limit_or_its_last_run(best: float, headroom: float) -> None:
    race, limit = RateRace.against(best), best * headroom
    asked = play(race, limit)
    assert len(asked) <= race.max_runs
    assert race.held is not None
    assert best < race.held <= limit
    assert len(asked) == race.max_runs or limit < race.held * race.tolerance * ROUNDING


@given(best=RATES, told=st.floats(1.1, 10.0), headroom=st.floats(0.01, 0.99))
def test_a_prediction_is_tried_first_and_given_up_when_no_rate_above_the_best_is_held(
    best: float, told: float, headroom: float
) -> None:
    race = RateRace.against(best, best * told)
    asked = play(race, best * headroom)
    assert asked[0] == readable(max(LEAD * best, best * told / CAUTION))
    assert asked == sorted(asked, reverse=True)
    assert all(rate > best for rate in asked)
    assert len(asked) <= race.max_runs


@given(best=RATES, told=st.floats(0.9, 10.0), error=st.floats(0.97, 1.03))
def test_a_good_prediction_needs_few_runs(best: float, told: float, error: float) -> None:
    race = RateRace.against(best, best * told)
    assert len(play(race, best * told * error)) <= 3


@given(limit=RATES, start=RATES)
def test_asked_rates_are_ones_that_a_person_would_type(limit: float, start: float) -> None:
    for strategy in (RateSearch(start), RateRace.against(start)):
        for rate in play(strategy, limit):
            assert rate == float(f"{rate:.3g}")


@pytest.mark.parametrize("rate", [6.0, None])
@pytest.mark.parametrize("held", [True, False])
def test_a_fixed_rate_is_asked_once(rate: float | None, held: bool) -> None:
    strategy = FixedRate(rate)
    assert not strategy.is_over
    assert strategy.next_rate() == rate
    strategy.record(rate, held=held)
    assert strategy.is_over
