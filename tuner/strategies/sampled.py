"""What all strategies with an Optuna sampler share: they ask it, and tell it what became of the settings."""

import warnings
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from tuner.failures import RISKY, FailureModel, failure_model, unmeasured_failure
from tuner.flat_space import FlatSpace
from tuner.objectives import told_values
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
# A sampler that offers nothing else has its way: the failures may have been bad luck.
MAX_AVOIDED = 10
_FALLBACK_SEEDS = 1_000_000
TRIAL = "trial"
"""Attribute of an Optuna trial: the number of the trial of the study whose result it has."""
UNMEASURED = "unmeasured"
"""Attribute of an Optuna trial whose settings no trial of the study has: why they are told as failing."""


class SampledStrategy(Strategy):
    """Draws from a sampler, and at random where the sampler only repeats what is known.

    What was best in earlier studies is drawn first. Settings that are likely to fail are told to the sampler as
    failing, without a trial.

    Attributes:
        needs_every_parameter: its sampler cannot draw conditional parameters, and is asked in a space without any.
        avoids_failures: it passes settings over that are likely to fail.
        has_generations: they consist of what the sampler drew itself, so it is not told what failed in earlier studies.
    """

    needs_every_parameter: ClassVar[bool] = False
    avoids_failures: ClassVar[bool] = True
    has_generations: ClassVar[bool] = False

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
            self._tell_failed_before()
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

    @property
    def first_random_trials(self) -> int:
        """How many told trials a sampler needs before it draws by them; failures of earlier studies are no start."""
        return FIRST_RANDOM_TRIALS + len(self._failed_before())

    @abstractmethod
    def _make_sampler(self, seed: int) -> "optuna.samplers.BaseSampler":
        """The sampler; `seed` differs from process to process of one study."""

    def _space_for(self, space: SearchSpace) -> SearchSpace:
        """The space in the form in which the sampler is asked."""
        return FlatSpace(space.dimensions, space.fixed) if self.needs_every_parameter else space

    def _draw_new(self) -> Settings | None:
        """Settings that are not known and not likely to fail; None when many draws in a row were known."""
        failures = failure_model(self._search)
        self._enqueue(self._next_try(failures))
        repeats = avoided = 0
        while repeats < MAX_DUPLICATES:
            self._study.sampler = self._sampler if repeats < MAX_REPEATS_OF_SAMPLER else self._fallback
            settings = self._ask()
            if settings is None:
                repeats += 1
            elif self.avoids_failures and avoided < MAX_AVOIDED and failures.risk(settings) >= RISKY:
                avoided += 1
                assert self._asked is not None
                self._tell_unmeasured(self._asked, settings, "likely to fail")
            else:
                return settings
        return None

    def _next_try(self, failures: FailureModel) -> Settings | None:
        """The first of the settings that were best in earlier studies and are still to be measured."""
        tries = (s for s in self._search.prior.tries if self._search.known(s) is None)
        return next((s for s in tries if failures.risk(s) < RISKY and self.space.params_of(s) is not None), None)

    def _enqueue(self, settings: Settings | None) -> None:
        """Have these settings drawn next, unless others are waiting for that already."""
        params = None if settings is None else self.space.params_of(settings)
        if params is not None and not self._some_wait():
            self._study.enqueue_trial(params)

    def _some_wait(self) -> bool:
        """Whether settings are to be drawn before any others, such as those of a trial that was interrupted."""
        import optuna

        return bool(self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,)))

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

    def _failed_before(self) -> list[Settings]:
        """The settings of the space that failed in earlier studies, as far as the sampler is told of them."""
        if self.has_generations:
            return []
        return [s for s in self._search.prior.failed if self.space.params_of(s) is not None]

    def _tell_failed_before(self) -> None:
        for settings in self._failed_before():
            self._enqueue(settings)
            asked = self._study.ask()
            self.space.suggest(asked)
            self._tell_unmeasured(asked, settings, "failed in an earlier study")

    def _tell_unmeasured(self, asked: "optuna.Trial", settings: Settings, why: str) -> None:
        """Tell the sampler that settings fail, which no trial of this study has shown."""
        asked.set_user_attr(UNMEASURED, why)
        self._tell_outcome(asked, unmeasured_failure(settings))

    def _tell(self, asked: "optuna.Trial", trial: Trial) -> None:
        asked.set_user_attr(TRIAL, trial.number)
        self._tell_outcome(asked, trial)

    def _tell_outcome(self, asked: "optuna.Trial", trial: Trial) -> None:
        _, constraint = outcome(trial)
        asked.set_constraint("slo", constraint)
        self._study.tell(asked, told_values(trial, self._search.objectives, self._search.trials))


def told_numbers(study: "optuna.Study") -> set[int]:
    """Numbers of the trials that Optuna was told the end of."""
    import optuna

    complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    return {t.user_attrs[TRIAL] for t in complete if TRIAL in t.user_attrs}
