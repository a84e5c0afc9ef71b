"""What is said to matter has been tried often enough to say so."""

import optuna
import pytest

from tuner.importance import MIN_TRIALS_FOR_IMPORTANCE, importance

ENOUGH = 3 * MIN_TRIALS_FOR_IMPORTANCE


def study_of(num_trials: int, conditional_trials: int = 0) -> optuna.Study:
    """Goodput hangs on `seats` alone; `delay` was drawn in the first few trials only."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=7))
    for number in range(num_trials):
        trial = study.ask()
        seats = trial.suggest_int("seats", 1, 100)
        trial.suggest_float("share", 0.5, 1.0)
        if number < conditional_trials:
            trial.suggest_float("delay", 0.0, 1.0)
        study.tell(trial, float(seats))
    return study


def test_the_parameter_that_goodput_hangs_on_has_the_largest_share() -> None:
    shares = importance(study_of(ENOUGH))
    assert set(shares) == {"seats", "share"}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert max(shares, key=lambda name: shares[name]) == "seats"


def test_too_few_trials_tell_nothing() -> None:
    assert importance(study_of(MIN_TRIALS_FOR_IMPORTANCE - 1)) == {}


def test_a_parameter_that_was_drawn_too_seldom_is_left_out() -> None:
    assert "delay" not in importance(study_of(ENOUGH, MIN_TRIALS_FOR_IMPORTANCE - 1))
    assert "delay" in importance(study_of(ENOUGH, MIN_TRIALS_FOR_IMPORTANCE))
