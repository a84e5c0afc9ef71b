"""What is read off many studies: regret at a time, when it stays small, and the tests between strategies."""

import dataclasses

import pytest

from scripts.search_proof.capacity import Truth
from scripts.search_proof.comparison import MOST_TIME, SHARES, SMALL_REGRET, at_start, holm, paired_p, small_from
from scripts.search_proof.pairs import PAIRS
from scripts.search_proof.study import Job, Played, grid_s
from scripts.search_proof.trajectory import can_be_timed, regrets
from scripts.search_proof.world import Cost

PAIR = next(iter(PAIRS))
GOOD, FAIR, POOR = (list(PAIRS[PAIR].points())[i] for i in (0, 1, 2))
TRUTH = Truth({GOOD: 10.0, FAIR: 9.0, POOR: 5.0}, dict.fromkeys((GOOD, FAIR, POOR), 800))


def study(strategy: str = "twin", seed: int = 0, last: tuple = GOOD) -> Played:
    """A baseline of two runs, then two trials, of which the second is better."""
    costs = [Cost(10.0, True), Cost(10.0, False), Cost(10.0, True), Cost(10.0, True)]
    return Played(Job(PAIR, strategy, seed), costs, [(0, None), (2, POOR), (4, last)])


def test_a_recommendation_counts_from_the_end_of_the_run_that_made_it() -> None:
    assert regrets(study(), TRUTH, 0.0, [0.0, 19.9, 20.0, 39.9, 40.0, 1e9]) == [1.0, 1.0, 0.5, 0.5, 0.0, 0.0]


def test_starts_are_added_where_the_settings_changed() -> None:
    assert regrets(study(), TRUTH, 30.0, [49.9, 50.0, 129.9, 130.0]) == [1.0, 0.5, 0.5, 0.0]


def test_a_study_whose_strategy_saw_the_time_is_not_timed_anew() -> None:
    saw = dataclasses.replace(study(), looked_at_time=True)
    assert can_be_timed(saw, 0.0)
    assert not can_be_timed(saw, 30.0)
    with pytest.raises(ValueError, match="saw the time"):
        regrets(saw, TRUTH, 30.0, [1.0])


def test_a_study_comes_back_from_its_line_of_json_as_it_was() -> None:
    played = dataclasses.replace(study(), chosen=(GOOD, 4.5))
    assert Played.from_dict(played.to_dict()) == played


def test_the_regret_is_small_from_where_it_never_rises_again() -> None:
    medians = [0.5, 0.01, 0.3, *[0.0] * (len(SHARES) - 3)]
    assert small_from(medians) == SHARES[3]
    assert small_from([0.5] * len(SHARES)) is None
    assert small_from([SMALL_REGRET] * len(SHARES)) == SHARES[0]


def test_holm_multiplies_the_smallest_most_and_never_falls() -> None:
    corrected = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": None})
    assert corrected == {"a": pytest.approx(0.03), "b": pytest.approx(0.06), "c": pytest.approx(0.06), "d": None}


def test_equal_regrets_are_no_evidence() -> None:
    ours = {("p", seed): 0.1 for seed in range(10)}
    assert paired_p(ours, dict(ours)) == 1.0
    assert paired_p(ours, {}) is None


def test_smaller_regrets_in_the_same_studies_are_evidence() -> None:
    theirs = {("p", seed): 0.1 + seed / 1000 for seed in range(12)}
    ours = {key: value - 0.05 - value / 100 for key, value in theirs.items()}
    better, worse = paired_p(ours, theirs), paired_p(theirs, ours)
    assert better is not None
    assert worse is not None
    assert better < 0.001
    assert worse > 0.99


def test_strategies_are_compared_at_the_limit_of_the_time() -> None:
    played = [study("twin", seed) for seed in range(8)] + [study("random", seed, last=FAIR) for seed in range(8)]
    found = at_start(played, {PAIR: TRUTH}, 0.0)
    assert MOST_TIME * grid_s(PAIRS[PAIR], 0.0) > 40.0
    assert found["strategies"]["twin"]["median_at_limit"] == 0.0
    assert found["strategies"]["random"]["median_at_limit"] == pytest.approx(0.1)
    assert found["tests"]["random"]["studies"] == 8
    assert found["tests"]["random"]["p_holm"] < 0.01
