"""Looks for settings on the twin where the goodput is not the only objective: which would widen the front most."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.failures import RISKY, failure_model
from tuner.front import search_front, values_of
from tuner.objectives import Objective
from tuner.settings import Settings
from tuner.strategies.base import Search
from tuner.strategies.front_gain import FrontGain, chance_below
from tuner.trial import Trial
from tuner.twin.correction import Correction
from tuner.twin.twin import Played, Twin, log_excess
from tuner.unit_cube import unit_point

if TYPE_CHECKING:
    import optuna

FIRST_RANDOM_CANDIDATES = 40
PROMISING = 15
# Measured settings that the twin is held against.
MOST_ERRORS = 15
# Outcomes of a setting over which its gain is averaged; the same for all, so that luck makes no difference.
_OUTCOMES = 128
_OUTCOMES_SEED = 1
_SMALLEST = 1e-9
# Of settings that are not played, since they are likely to fail.
_OUT_OF_THE_QUESTION = -20.0


@dataclass(frozen=True, slots=True)
class Expected:
    """Settings that were played, and what to expect of a run.

    Attributes:
        values: of the objectives by name, with what the twin got wrong so far put right.
        gain: what they are expected to add to the front, as a share of the volume that it dominates.
    """

    settings: Settings
    played: Played
    values: dict[str, float]
    gain: float

    @property
    def rate(self) -> float | None:
        """See `Played`."""
        return self.played.rate

    @property
    def goodput(self) -> float:
        """See `Played`."""
        return self.played.goodput


class FrontScout:
    """One search on a twin.

    Args:
        search: the study's; all of it is measured at one load.
        twin: learnt from all of its runs so far, with the study's objectives.
        promising: settings to look at again, which an earlier twin thought well of.

    Attributes:
        promising: those that this one thinks well of, the best first.
        num_played: settings that were drawn and played.
    """

    def __init__(self, search: Search, twin: Twin, promising: Sequence[Settings] = ()) -> None:
        import numpy as np

        self._search, self._twin, self.promising = search, twin, tuple(promising)
        self.num_played = 0
        self._failures = failure_model(search)
        run = search.trials[0].decisive
        self._rate = None if run is None else run.rate
        self._objectives = search.objectives
        self._normals = np.random.default_rng(_OUTCOMES_SEED).normal(size=(_OUTCOMES, len(self._objectives)))
        self._front = search_front(search.trials, self._objectives)
        measured = [merits for trial in self._front if (merits := self._measured(trial)) is not None]
        self._gain = FrontGain(measured) if measured else None
        self._ceilings = [_ceiling(objective, search.trials[0]) for objective in self._objectives]
        self._corrections, self._excess = self._learn_errors()

    def best_of(self, candidates: int, steps: int) -> Expected | None:
        """The most promising of some settings, but for those that were measured; None where none promises anything.

        They are drawn by TPE, told of each what to expect of it.

        Args:
            candidates: most settings to play.
            steps: of the engine to play, after which no further setting is drawn.
        """
        study, drawn = self._inner_study(), {}
        begin, done = self._twin.steps, 0.0
        while done < 1:
            self._search.thinking("playing settings on the twin", done)
            self.num_played += 1
            asked = study.ask()
            settings = self._search.space.suggest(asked)
            played = None if self._failures.risk(settings) >= RISKY else self._twin.play(settings, self._rate)
            done = max(self.num_played / candidates, (self._twin.steps - begin) / steps)
            merits = None if played is None else self._predicted(settings, played)
            if played is None or merits is None:
                asked.set_constraint("slo", 1.0)
                study.tell(asked, [_OUT_OF_THE_QUESTION] * len(self._objectives))
                continue
            asked.set_constraint("slo", self._expected_excess(settings, played))
            study.tell(asked, merits)
            if self._search.known(settings) is None:
                drawn[settings] = Expected(settings, played, self._values(merits), self._gain_of(settings, played))
        ranked = sorted(drawn.values(), key=lambda one: one.gain, reverse=True)
        self.promising = tuple(one.settings for one in ranked[:PROMISING])
        return ranked[0] if ranked and ranked[0].gain > 0 else None

    def _gain_of(self, settings: Settings, played: Played) -> float:
        import numpy as np

        point, merits = self._point(settings), self._predicted(settings, played)
        assert merits is not None
        excess = self._excess.error(point)
        chance = chance_below(played.excess + excess.mean, excess.deviation) * (1.0 - self._failures.risk(settings))
        if self._gain is None:
            # Nothing meets the SLO yet: what most likely does is worth a run.
            return 1e6 * chance
        deviations = [correction.error(point).deviation for correction in self._corrections]
        outcomes = np.minimum(np.array(merits) + self._normals * deviations, self._ceilings)
        return chance * float(self._gain.share(outcomes).mean())

    def _expected_excess(self, settings: Settings, played: Played) -> float:
        return played.excess + self._excess.error(self._point(settings)).mean

    def _predicted(self, settings: Settings, played: Played) -> list[float] | None:
        """Expected logarithms, the larger the better; None where the twin saw no request through."""
        said, point = self._merits(played.values), self._point(settings)
        if said is None:
            return None
        each = zip(said, self._objectives, self._corrections, self._ceilings, strict=True)
        return [min(most, merit + _sign(o.larger_is_better) * c.at(point)) for merit, o, c, most in each]

    def _values(self, merits: Sequence[float]) -> dict[str, float]:
        both = zip(self._objectives, merits, strict=True)
        return {o.name: math.exp(_sign(o.larger_is_better) * merit) for o, merit in both}

    def _measured(self, trial: Trial) -> list[float] | None:
        values = values_of(trial, self._objectives)
        return None if values is None else self._merits([values[o.name] for o in self._objectives])

    def _merits(self, values: Sequence[float | None]) -> list[float] | None:
        """Logarithms of values, the larger the better; None where one is not known."""
        merits = []
        for value, objective in zip(values, self._objectives, strict=True):
            if value is None:
                return None
            merits.append(_sign(objective.larger_is_better) * math.log(max(value, _SMALLEST)))
        return merits

    def _learn_errors(self) -> tuple[list[Correction], Correction]:
        """Measured over predicted, of each objective and of how far the SLO is missed."""
        points: list[tuple[float, ...]] = []
        errors: list[list[float]] = []
        for trial in self._known():
            measured, run = self._measured(trial), trial.decisive
            # One that was stopped early has seen its first requests only.
            if measured is None or run is None or run.meta["stopped_early"] is not None or not run.is_valid:
                continue
            played = self._twin.play(trial.settings, run.rate)
            said = None if played is None else self._merits(played.values)
            if played is None or said is None:
                continue
            both = zip(measured, said, self._objectives, strict=True)
            excess = log_excess(run.meta["verdict"]["bounds"]) - played.excess
            points.append(self._point(trial.settings))
            errors.append([*(_sign(o.larger_is_better) * (m - s) for m, s, o in both), excess])
        columns = list(zip(*errors, strict=True)) or [()] * (len(self._objectives) + 1)
        *corrections, excess_correction = (Correction(points, column) for column in columns)
        return corrections, excess_correction

    def _known(self) -> list[Trial]:
        """The trials that the twin is held against: those of the front, and the newest."""
        newest = self._search.trials[-MOST_ERRORS:]
        return [*(trial for trial in self._front if trial not in newest), *newest]

    def _point(self, settings: Settings) -> tuple[float, ...]:
        return unit_point(self._search.space, settings)

    def _inner_study(self) -> "optuna.Study":
        import optuna

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                seed=self._search.seed + len(self._search.trials),
                n_startup_trials=FIRST_RANDOM_CANDIDATES,
                multivariate=True,
                group=True,
            )
        study = optuna.create_study(directions=["maximize"] * len(self._objectives), sampler=sampler)
        known = [trial.settings for trial in (*self._front, self._search.trials[0])]
        for settings in dict.fromkeys([*known, *self._search.prior.tries, *self.promising]):
            params = self._search.space.params_of(settings)
            if params is not None:
                study.enqueue_trial(params)
        return study


def _ceiling(objective: Objective, baseline: Trial) -> float:
    """Logarithm of what no setting can exceed, however well it serves: what arrives at the given rate."""
    run = baseline.decisive
    if run is None or run.rate is None or not objective.larger_is_better:
        return math.inf
    if objective.unit != "tokens/s":
        return math.log(run.rate)
    completed, tokens = (run.meta["summary"][key] for key in ("completed", "total_output_tokens"))
    return math.log(run.rate * tokens / completed) if tokens else math.inf


def _sign(larger_is_better: bool) -> int:
    return 1 if larger_is_better else -1
