"""Strategies that know something before they begin, and those that learn what fails."""

from dataclasses import replace

import optuna
import pytest

from tests.tuner.played_strategies import Played
from tests.tuner.small_studies import Tune
from tuner.prior import Prior
from tuner.settings import Settings
from tuner.space import default_space
from tuner.strategies.sampled import FIRST_RANDOM_TRIALS, MAX_AVOIDED, TRIAL, UNMEASURED
from tuner.strategies.samplers import Tpe

SPACE = default_space(Settings(), [], on_gpu=True, smallest_utilization=0.5, max_resident_requests=400)
TRIES = (
    Settings(max_num_seqs=48, max_num_batched_tokens=4096),
    Settings(max_num_seqs=64, max_num_batched_tokens=8192, chunk_size=512),
)
FAILED = (Settings(gpu_memory_utilization=0.95, max_num_seqs=384, max_num_batched_tokens=8192),)
NAMES = ("tpe", "cmaes", "nsga2", "random")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "cmaes":
        pytest.importorskip("cmaes")
    return request.param


def unmeasured(study: optuna.Study, why: str) -> list[optuna.trial.FrozenTrial]:
    return [t for t in study.get_trials() if t.user_attrs.get(UNMEASURED) == why]


def test_what_was_best_elsewhere_is_proposed_first_and_once(name: str) -> None:
    played = Played(name, SPACE, seed=1, prior=Prior(tries=TRIES))
    proposed = played.play(5)
    assert proposed[:2] == list(TRIES)
    assert len(set(proposed)) == 5


@pytest.mark.parametrize("taken_up_after", [0, 1, 2])
def test_a_study_that_is_taken_up_goes_on_with_the_tries_that_are_left(name: str, taken_up_after: int) -> None:
    played = Played(name, SPACE, seed=1, prior=Prior(tries=TRIES))
    before = played.play(taken_up_after)
    interrupted = played.strategy.propose()
    played.go_on()
    after = played.play(3)
    assert after[0] == interrupted
    assert [*before, *after][:2] == list(TRIES)
    assert len({*before, *after}) == taken_up_after + 3


def test_a_try_that_is_likely_to_fail_is_left_out() -> None:
    beyond = replace(FAILED[0], max_num_seqs=400)
    assert Played("tpe", SPACE, prior=Prior(tries=(beyond, *TRIES), failed=FAILED)).play(2) == list(TRIES)


@pytest.mark.parametrize("name", ["tpe", "gp"])
def test_what_failed_elsewhere_is_told_as_failing_once_and_is_no_trial_of_the_study(name: str) -> None:
    played = Played(name, SPACE, seed=1, prior=Prior(failed=FAILED))
    played.go_on()
    (told,) = unmeasured(played.study, "failed in an earlier study")
    assert told.state == optuna.trial.TrialState.COMPLETE
    assert told.constraints == {"slo": 1.0}
    assert told.value == 0.0
    assert TRIAL not in told.user_attrs
    assert len(played.trials) == 1


def test_failures_elsewhere_do_not_use_up_the_first_random_draws() -> None:
    many = tuple(replace(FAILED[0], max_num_seqs=n) for n in (256, 320, 384))
    played = Played("tpe", SPACE, prior=Prior(failed=many))
    strategy = played.strategy
    assert strategy.first_random_trials == FIRST_RANDOM_TRIALS + len(many)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["cmaes", "nsga2"])
def test_a_generation_holds_no_failures_from_elsewhere(name: str) -> None:
    if name == "cmaes":
        pytest.importorskip("cmaes")
    assert unmeasured(Played(name, SPACE, prior=Prior(failed=FAILED)).study, "failed in an earlier study") == []


def takes_much(settings: Settings) -> bool:
    return settings.max_num_seqs > 48 and settings.gpu_memory_utilization > 0.6


def failures_in(name: str, seed: int) -> tuple[int, int]:
    """How many of 25 proposals fail, and how many were passed over."""
    played = Played(name, replace(SPACE, fixed=Settings(max_num_seqs=8)), seed=seed, fails=takes_much)
    return sum(map(takes_much, played.play(25))), len(unmeasured(played.study, "likely to fail"))


def test_settings_that_are_likely_to_fail_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    careful = [failures_in("tpe", seed) for seed in range(4)]
    monkeypatch.setattr(Tpe, "avoids_failures", False)
    careless = [failures_in("tpe", seed) for seed in range(4)]
    assert sum(failed for failed, _ in careful) < 0.8 * sum(failed for failed, _ in careless), (careful, careless)
    assert all(avoided for _, avoided in careful)


def test_random_passes_nothing_over() -> None:
    failed, avoided = failures_in("random", seed=0)
    assert failed
    assert avoided == 0


def test_a_sampler_that_offers_nothing_else_has_its_way_in_the_end() -> None:
    played = Played("tpe", SPACE, seed=0, fails=lambda _: True, prior=Prior(failed=(replace(Settings(), max_num_seqs=8,
                    max_num_batched_tokens=512, gpu_memory_utilization=0.5, chunk_size=128),)))  # fmt: skip
    played.trials[0].settings = Settings(max_num_seqs=8, max_num_batched_tokens=512, gpu_memory_utilization=0.5)
    assert len(played.play(3)) == 3
    assert len(unmeasured(played.study, "likely to fail")) <= 3 * MAX_AVOIDED


@pytest.mark.parametrize("name", ["grid", "qmc"])
def test_a_strategy_with_a_sequence_of_its_own_refuses_a_named_study(tune: Tune, name: str) -> None:
    outcome = tune("--slo", "p95_ttft=1s", "--device", "sim:l4", "--strategy", name, "--warm-start", "old")
    assert outcome.code == 2
    assert "sequence of its own" in outcome.err
