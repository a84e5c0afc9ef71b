"""Looks for settings on the twin where the goodput is not the only objective: which would widen the front most."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.failures import RISKY, failure_model
from tuner.front import search_front, values_of
from tuner.objectives import GOODPUT, Objective
from tuner.settings import Settings
from tuner.strategies.base import Search
from tuner.strategies.candidates import MOST_ERRORS, OUT_OF_THE_QUESTION, PROMISING, draw, study_of_candidates
from tuner.strategies.front_gain import FrontGain
from tuner.trial import Trial
from tuner.twin.correction import Correction, Errors
from tuner.twin.twin import UNOBSERVED, Played, Twin, log_excess
from tuner.unit_cube import unit_point

# Outcomes of a setting over which its gain is averaged; the same for all, so that luck makes no difference.
_OUTCOMES = 128
_OUTCOMES_SEED = 1
_SMALLEST = 1e-9


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
        """The expected one where it is an objective, else what the twin says."""
        return self.values.get(GOODPUT.name, self.played.goodput)


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
        self._ceilings = [_ceiling(objective, self._rate, search.trials) for objective in self._objectives]
        self._corrections, self._slack = self._learn_errors()

    def best_of(self, candidates: int, steps: int) -> Expected | None:
        """The most promising of some settings, but for those that were measured; None where none promises anything.

        They are drawn by TPE, told of each what to expect of it.

        Args:
            candidates: most settings to play.
            steps: of the engine to play, after which no further setting is drawn.
        """
        known = [trial.settings for trial in (*self._front, self._search.trials[0])]
        first = [*known, *self._search.prior.tries, *self.promising]
        study, drawn = study_of_candidates(self._search, first, len(self._objectives)), {}
        for asked, settings in draw(self._search, study, self._twin, candidates, steps):
            self.num_played += 1
            played = None if self._failures.risk(settings) >= RISKY else self._twin.play(settings, self._rate)
            merits = None if played is None else self._predicted(settings, played)
            if played is None or merits is None:
                asked.set_constraint("slo", 1.0)
                study.tell(asked, [OUT_OF_THE_QUESTION] * len(self._objectives))
                continue
            asked.set_constraint("slo", played.excess - self._slack.at(self._point(settings)))
            study.tell(asked, merits)
            if self._search.known(settings) is None:
                gain = self._gain_of(settings, played, merits)
                drawn[settings] = Expected(settings, played, self._values(merits), gain)
        ranked = sorted(drawn.values(), key=lambda one: one.gain, reverse=True)
        self.promising = tuple(one.settings for one in ranked[:PROMISING])
        return ranked[0] if ranked and ranked[0].gain > 0 else None

    def _gain_of(self, settings: Settings, played: Played, merits: Sequence[float]) -> float:
        """Of settings with such expected merits."""
        import numpy as np

        point = self._point(settings)
        chance = self._slack.error(point).chance_of(played.excess) * (1.0 - self._failures.risk(settings))
        if self._gain is None:
            # Nothing meets the SLO yet: what most likely does is worth a run.
            return chance
        deviations = [correction.error(point).deviation for correction in self._corrections]
        outcomes = np.minimum(np.array(merits) + self._normals * deviations, self._ceilings)
        return chance * float(self._gain.share(outcomes).mean())

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
        """Measured over predicted: of each objective, and of the slack to the SLO, which is the excess below 0.

        A run that missed and was stopped has seen its first requests only. It says nothing of the objectives, and of
        the slack that there is none.
        """
        values, slacks = [Errors() for _ in self._objectives], Errors()
        for trial in self._known():
            run = trial.decisive
            if run is None or run.failure is not None or trial.error_type is not None or not run.is_valid:
                continue
            played = self._twin.play(trial.settings, run.rate)
            if played is None:
                continue
            point, whole = self._point(trial.settings), run.meta["stopped_early"] is None
            excess = log_excess(run.meta["verdict"]["bounds"])
            if played.excess < UNOBSERVED and (run.constraint > 0 if not whole else excess < UNOBSERVED):
                slacks.add(point, played.excess - (excess if whole else 0.0), is_bound=not whole)
            measured = values_of(trial, self._objectives) if whole else None
            if measured is not None:
                for errors, objective, said in zip(values, self._objectives, played.values, strict=True):
                    # Nothing at all is no number of times as much.
                    if said and (found := measured[objective.name]):
                        errors.add(point, math.log(found / said))
        return [errors.correction() for errors in values], slacks.correction()

    def _known(self) -> list[Trial]:
        """The trials that the twin is held against: those of the front, and the newest."""
        newest = self._search.trials[-MOST_ERRORS:]
        return [*(trial for trial in self._front if trial not in newest), *newest]

    def _point(self, settings: Settings) -> tuple[float, ...]:
        return unit_point(self._search.space, settings)


def _ceiling(objective: Objective, rate: float | None, trials: Sequence[Trial]) -> float:
    """Logarithm of what no setting can exceed, however well it serves: what arrives at the given rate."""
    if rate is None or not objective.larger_is_better:
        return math.inf
    if objective.unit != "tokens/s":
        return math.log(rate)
    # All see the same requests, and only of a run that served them all is it known how long their answers are.
    summaries = (run.meta["summary"] for trial in trials for run in trial.runs if run.meta["stopped_early"] is None)
    for summary in summaries:
        if summary["completed"] and summary["total_output_tokens"] and not summary["failed"]:
            return math.log(rate * summary["total_output_tokens"] / summary["completed"])
    return math.inf


def _sign(larger_is_better: bool) -> int:
    return 1 if larger_is_better else -1
