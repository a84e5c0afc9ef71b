"""Drawing the settings that a twin is to play: by TPE, told of each what the twin says."""

import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tuner.settings import Settings
from tuner.strategies.base import Search
from tuner.twin.twin import Twin

if TYPE_CHECKING:
    import optuna

FIRST_RANDOM_CANDIDATES = 40
# Settings of one search on a twin that the next one looks at again.
PROMISING = 15
# Measured settings that a twin is held against.
MOST_ERRORS = 15
OUT_OF_THE_QUESTION = -20.0
"""The merit of settings that are not played, since they do not fit or are likely to fail."""


def study_of_candidates(search: Search, first: Sequence[Settings], values: int = 1) -> "optuna.Study":
    """A study in memory that maximises so many values, in which the settings of `first` come first.

    Args:
        search: the study's; its seed and the number of its trials decide what is drawn.
        first: those that the space does not hold are left out, and repeated ones come once.
        values: that it will be told of each.
    """
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=search.seed + len(search.trials),
            n_startup_trials=FIRST_RANDOM_CANDIDATES,
            multivariate=True,
            group=True,
        )
    study = optuna.create_study(directions=["maximize"] * values, sampler=sampler)
    for settings in dict.fromkeys(first):
        params = search.space.params_of(settings)
        if params is not None:
            study.enqueue_trial(params)
    return study


def draw(
    search: Search, study: "optuna.Study", twin: Twin, most: int, steps: int
) -> "Iterator[tuple[optuna.Trial, Settings]]":
    """Settings to be played on the twin, and of which `study` is to be told, one after another.

    Args:
        most: settings.
        steps: of the engine that the twin may play meanwhile, after which no further setting is drawn.
    """
    begin, drawn, done = twin.steps, 0, 0.0
    while done < 1:
        search.thinking("playing settings on the twin", done)
        asked = study.ask()
        yield asked, search.space.suggest(asked)
        drawn += 1
        done = max(drawn / most, (twin.steps - begin) / steps)
