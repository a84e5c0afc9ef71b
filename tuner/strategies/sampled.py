"""What all strategies with an Optuna sampler share: they ask it, and tell it what became of the settings."""

import warnings
from abc import abstractmethod
from typing import TYPE_CHECKING

from tuner.settings import Settings
from tuner.space import SearchSpace
from tuner.strategies.base import Search, Strategy
from tuner.trial import Trial, outcome

if TYPE_CHECKING:
    import optuna

FIRST_RANDOM_TRIALS = 5
MAX_DUPLICATES = 30
# A sampler that has settled on one point goes on to repeat it, while others are still unknown.
MAX_REPEATS_OF_SAMPLER = 5
_FALLBACK_SEEDS = 1_000_000
TRIAL = "trial"
"""Attribute of an Optuna trial: the number of the trial of the study whose result it has."""


class SampledStrategy(Strategy):
    """Draws from a sampler, and at random where the sampler only repeats what is known."""

    def __init__(self, search: Search) -> None:
        import optuna

        super().__init__(search)
        self._study = search.study
        self.space = self._space_for(search.space)
        self._asked: optuna.Trial | None = None
        told = self._study.get_trials(deepcopy=False)
        # A resumed sampler must go on to new settings instead of drawing its first ones again.
        seed = search.seed + len(told)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._sampler = self._make_sampler(seed)
        self._fallback = optuna.samplers.RandomSampler(seed=seed + _FALLBACK_SEEDS)
        self._study.sampler = self._sampler
        if not told:
            self._tell_known(search.trials[0])
        for frozen in told:
            if frozen.state == optuna.trial.TrialState.RUNNING:
                # Its process ended in the middle: the same settings come first now, with the runs they have.
                self._study.tell(frozen.number, state=optuna.trial.TrialState.FAIL)
                if frozen.params:
                    self._study.enqueue_trial(frozen.params)

    def propose(self) -> Settings | None:
        settings = self._draw_new()
        if settings is None:
            self._search.say("the sampler only repeats settings that are known: the search space is used up")
        return settings

    def learn(self, trial: Trial) -> None:
        assert self._asked is not None
        self._tell(self._asked, trial)
        self._asked = None

    @abstractmethod
    def _make_sampler(self, seed: int) -> "optuna.samplers.BaseSampler":
        """The sampler; `seed` differs from process to process of one study."""

    def _space_for(self, space: SearchSpace) -> SearchSpace:
        """The space in the form in which the sampler is asked."""
        return space

    def _draw_new(self) -> Settings | None:
        """Settings that are not known; None when many draws in a row were."""
        for repeats in range(MAX_DUPLICATES):
            self._study.sampler = self._sampler if repeats < MAX_REPEATS_OF_SAMPLER else self._fallback
            settings = self._ask()
            if settings is not None:
                return settings
        return None

    def _ask(self) -> Settings | None:
        """Settings for the next trial; None when they are known, and the sampler was reminded of what they gave."""
        asked = self._study.ask()
        settings = self.space.suggest(asked)
        asked.set_user_attr("settings", settings.to_dict())
        known = self._search.known(settings)
        if known is None:
            self._asked = asked
            return settings
        self._tell(asked, known)
        return None

    def _tell_known(self, trial: Trial) -> None:
        """Tell the sampler of a trial that it has not drawn, if its settings lie in the space."""
        params = self.space.params_of(trial.settings)
        if params is not None:
            self._study.enqueue_trial(params)
            asked = self._study.ask()
            self.space.suggest(asked)
            self._tell(asked, trial)

    def _tell(self, asked: "optuna.Trial", trial: Trial) -> None:
        value, constraint = outcome(trial)
        asked.set_user_attr(TRIAL, trial.number)
        asked.set_constraint("slo", constraint)
        self._study.tell(asked, value)


def told_numbers(study: "optuna.Study") -> set[int]:
    """Numbers of the trials that Optuna was told the end of."""
    import optuna

    complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    return {t.user_attrs[TRIAL] for t in complete if TRIAL in t.user_attrs}
