"""What every strategy keeps to: its proposals lie in the space, are new, go on after an interruption, and end."""

from dataclasses import replace

import pytest

from engine.errors import UserError
from tests.tuner.played_strategies import Played
from tests.tuner.small_studies import Tune
from tuner.objectives import DEFAULT_OBJECTIVES, rank
from tuner.settings import Settings
from tuner.space import Choices, Range, SearchSpace, default_space, with_search
from tuner.strategies.registry import STRATEGIES, strategy_named
from tuner.strategies.sampled import FIRST_RANDOM_TRIALS

# A Gaussian process takes a second for a proposal, so it has one test of its own.
NAMES = ("tpe", "cmaes", "nsga2", "qmc", "random", "grid", "staged")
DEFAULT = default_space(Settings(), [], on_gpu=True, smallest_utilization=0.5, max_resident_requests=400)
CONDITIONAL = with_search(
    replace(DEFAULT, dimensions={"max_num_seqs": Range(8, 400), "max_num_batched_tokens": Range(512, 8192)}),
    ["policy=fcfs,sjf", "aging=1s..1m", "chunk_size=128..1024"],
)
TINY = SearchSpace(
    {"max_num_seqs": Range(2, 4), "max_num_batched_tokens": Choices((512, 1024)), "chunk_size": Range(100, 112)},
    Settings(max_num_seqs=3),
)
# Two ranges for CMA-ES, which leaves the choice of a budget as it is; staged keeps one pair of six for the chunks.
TINY_SIZE = dict.fromkeys(NAMES, 18) | {"cmaes": 9, "staged": 6 + 2}
SPACES = {"default": DEFAULT, "conditional": CONDITIONAL}


def lies_in(space: SearchSpace, settings: Settings) -> bool:
    return space.params_of(settings) is not None


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "cmaes":
        pytest.importorskip("cmaes")
    return request.param


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_proposals_are_new_canonical_and_within_the_space(name: str, space: SearchSpace) -> None:
    played = Played(name, space, seed=3)
    proposed = played.play(12)
    assert len(proposed) == 12
    assert len({played.trials[0].settings, *proposed}) == 13
    for settings in proposed:
        assert settings == settings.canonical()
        assert lies_in(space, settings), settings
    assert len({s.max_num_seqs for s in proposed}) > 2


def test_the_same_seed_gives_the_same_proposals_and_another_seed_others(name: str) -> None:
    first, again, other = (Played(name, DEFAULT, seed=seed).play(8) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_a_used_up_space_ends_the_search_with_every_setting_tried_at_most_once(name: str) -> None:
    played = Played(name, TINY, seed=1, allowed=1000)
    proposed = played.play(100)
    assert len(set(proposed)) == len(proposed)
    assert TINY_SIZE[name] / 2 < len(proposed) <= TINY_SIZE[name]
    assert "used up" in played.said[-1] or "measured" in played.said[-1]


@pytest.mark.parametrize("taken_up_after", [0, 1, 7])
def test_a_study_that_is_taken_up_goes_on_with_new_settings(name: str, taken_up_after: int) -> None:
    played = Played(name, DEFAULT, seed=2, allowed=14)
    before = played.play(taken_up_after)
    played.go_on()
    after = played.play(7)
    assert len(after) == 7
    assert len({*before, *after}) == taken_up_after + 7


def test_settings_whose_trial_did_not_end_come_first_when_the_study_is_taken_up(name: str) -> None:
    played = Played(name, DEFAULT, seed=2)
    played.play(6)
    interrupted = played.strategy.propose()
    played.go_on()
    assert played.play(3)[0] == interrupted


@pytest.mark.parametrize("name", ["qmc", "grid"])
def test_a_fixed_sequence_is_the_same_with_and_without_an_interruption(name: str) -> None:
    whole, broken = Played(name, DEFAULT, seed=4), Played(name, DEFAULT, seed=4)
    first = broken.play(5)
    broken.go_on()
    assert first + broken.play(6) == whole.play(11)


def test_how_far_the_slo_was_missed_is_told_as_a_constraint() -> None:
    played = Played("tpe", DEFAULT, seed=0)
    played.play(6)
    told = {t.user_attrs["trial"]: t for t in played.study.trials}
    for trial in played.trials:
        assert trial.decisive is not None
        assert told[trial.number].constraints == {"slo": pytest.approx(trial.decisive.constraint)}
        assert told[trial.number].value == trial.decisive.goodput


def test_a_gaussian_process_proposes_new_settings_and_goes_on() -> None:
    played = Played("gp", CONDITIONAL, seed=2)
    before = played.play(FIRST_RANDOM_TRIALS)
    interrupted = played.strategy.propose()
    played.go_on()
    after = played.play(2)
    assert after[0] == interrupted
    assert len({played.trials[0].settings, *before, *after}) == FIRST_RANDOM_TRIALS + 3
    assert all(lies_in(CONDITIONAL, settings) for settings in [*before, *after])


@pytest.mark.parametrize("name", ["tpe", "cmaes", "staged"])
def test_strategies_that_learn_end_near_the_knee_of_a_simple_engine(name: str) -> None:
    if name == "cmaes":
        pytest.importorskip("cmaes")
    played = Played(name, DEFAULT, seed=0, allowed=40)
    played.play(40)
    best = max((t for t in played.trials if t.held), key=lambda t: rank(t, DEFAULT_OBJECTIVES))
    assert 48 <= best.settings.max_num_seqs <= 64


def test_an_unknown_strategy_is_refused_with_the_name_that_was_meant() -> None:
    with pytest.raises(UserError, match="did you mean grid"):
        strategy_named("gird")
    with pytest.raises(UserError, match="choose auto or one of tpe, twin"):
        strategy_named("annealing")


def test_help_names_every_strategy(tune: Tune) -> None:
    words = set(tune("--help").out.replace("│", " ").replace(",", " ").split())
    assert set(STRATEGIES) <= words
