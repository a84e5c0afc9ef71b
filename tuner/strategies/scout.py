"""Looks for settings on the twin: which of many promise most beside what was measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.failures import RISKY, failure_model
from tuner.objectives import GOODPUT, rank
from tuner.settings import Settings
from tuner.strategies.base import Search
from tuner.strategies.candidates import MOST_ERRORS, OUT_OF_THE_QUESTION, PROMISING, draw, study_of_candidates
from tuner.strategies.traffic import Traffic, log_limit
from tuner.trial import Trial
from tuner.twin.correction import Correction, Errors, Lead
from tuner.twin.twin import Played, Twin
from tuner.unit_cube import unit_point

# Those of a scan that are looked at under much more traffic.
FINALISTS = 6
# A setting that is further behind the best one found, in standard deviations of the twin's error, is left there.
_REACH = 1.0
# Half a step of the race: where a setting's limit lies when it held a rate and nothing above it was tried.
_ABOVE_HELD = 1.03


@dataclass(frozen=True, slots=True)
class Drawn:
    """Settings that were played, what came of it, and what they may gain on the best that was measured."""

    settings: Settings
    played: Played
    gain: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """Settings that may be worth a run.

    Attributes:
        played: what the twin says under the study's traffic.
        rate, goodput: the same with what the twin got wrong so far put right.
        gain: expected improvement on the best that was measured, as a share of it.
        values: nothing; see `front_scout.Expected`.
    """

    settings: Settings
    played: Played
    rate: float | None
    goodput: float
    gain: float
    values: Mapping[str, float] = field(default_factory=dict)


class Scout:
    """One search on a twin.

    Args:
        search: the study's.
        twin: learnt from all of its runs so far.
        promising: settings to look at again, which an earlier twin thought well of.

    Attributes:
        promising: those that this one thinks well of, the best first.
        num_played: settings that were drawn and played.
    """

    def __init__(self, search: Search, twin: Twin, promising: Sequence[Settings] = ()) -> None:
        self._search, self._twin, self.promising = search, twin, tuple(promising)
        self.num_played = 0
        self._failures = failure_model(search)
        self._traffic = Traffic(twin, search.luck) if search.searches_rate else None
        self._scanned = twin if self._traffic is None else self._traffic.scanned
        self._start = _start_rate(search)
        self._best = self._best_measured()
        self._correction = self._learn_errors()
        self._judge_measured()
        self._best = self._best_measured()
        self._best_point = self._point(self._best.settings)

    def best_of(self, candidates: int, steps: int) -> Proposal | None:
        """The most promising of some settings, but for those that were measured; None where none promises anything.

        They are drawn by TPE, told of each what the twin says.

        Args:
            candidates: most settings to play.
            steps: of the engine to play, after which no further setting is drawn.
        """
        drawn = sorted(self._scan(candidates, steps), key=lambda one: one.gain, reverse=True)
        self.promising = tuple(one.settings for one in drawn[:PROMISING])
        best = max(self._finalists(drawn), key=lambda one: one.gain, default=None)
        return None if best is None else self._proposal(best)

    def _best_measured(self) -> Trial:
        held = [trial for trial in self._search.trials if trial.held]
        return max(held, key=lambda trial: rank(trial, self._search.objectives), default=self._search.trials[0])

    def _judge_measured(self) -> None:
        """Say of what was measured how it would do under much traffic, so that the best is told from the luckiest."""
        for trial in self._search.trials if self._traffic is not None else ():
            if trial.held and trial.decisive is not None and trial.decisive.rate is not None:
                assert self._traffic is not None
                self._search.thinking("playing settings on the twin", 0.0)
                limit = self._traffic.limit(trial.settings, trial.decisive.rate, least=None)
                if limit is not None:
                    trial.expected = math.exp(limit + self._correction.at(self._point(trial.settings)))
                    trial.luck = self._search.luck.get(trial.settings, 0.0)

    def _finalists(self, drawn: Sequence[Drawn]) -> Sequence[Drawn]:
        """The best of a scan, judged anew under much more traffic, where the study is about rates and holds one."""
        if self._traffic is None or not self._best.held:
            return drawn
        assert self._start is not None
        best_log = self._traffic.limit(self._best.settings, self._start, least=None)
        if best_log is None:
            return drawn
        judged = []
        for one in drawn[:FINALISTS]:
            lead = self._lead(one.settings)
            least = math.exp(best_log - lead.mean - _REACH * lead.deviation)
            found = self._traffic.limit(one.settings, one.played.rate or self._start, least)
            if found is not None:
                judged.append(replace(one, gain=self._expected_gain(one.settings, found - best_log)))
        return judged

    def _scan(self, candidates: int, steps: int) -> list[Drawn]:
        first = [self._best.settings, *self._search.prior.tries, *self.promising]
        study, drawn = study_of_candidates(self._search, first), {}
        bar = best_log = self._merit_of_best()
        for asked, settings in draw(self._search, study, self._scanned, candidates, steps):
            self.num_played += 1
            played = None if self._failures.risk(settings) >= RISKY else self._race(settings, bar)
            if played is None:
                study.tell(asked, OUT_OF_THE_QUESTION)
                continue
            merit = self._log_merit(played) + self._lead(settings).mean
            study.tell(asked, merit)
            if played.held and bar is not None:
                bar = max(bar, merit)
            if self._search.known(settings) is None:
                drawn[settings] = Drawn(settings, played, self._gain(settings, played, best_log))
        return list(drawn.values())

    def _merit_of_best(self) -> float | None:
        """What the twin says of the best measured setting, as a logarithm; None while nothing holds the SLO."""
        if not self._best.held:
            return None
        played = self._to_limit(self._scanned, self._best.settings, self._start)
        # At a given rate the twin may miss by a hair what was held by one; the goodput compares all the same.
        counts = played is not None and (played.held or not self._search.searches_rate)
        return self._log_merit(played) if played is not None and counts else None

    def _gain(self, settings: Settings, played: Played, best_log: float | None) -> float:
        if best_log is None:
            # Nothing to improve on: anything is worth a run, what is said to hold before what is not.
            merit = math.exp(self._log_merit(played) + self._lead(settings).mean)
            return (1e6 * merit if played.held else 1.0 + played.goodput) * (1.0 - self._failures.risk(settings))
        return self._expected_gain(settings, self._log_merit(played) - best_log) if played.held else 0.0

    def _expected_gain(self, settings: Settings, ahead: float) -> float:
        """Of a setting that the twin says to be ahead of the best by so much, as logarithm."""
        lead = self._lead(settings)
        gain = min(self._room_above(self._best), Lead(ahead + lead.mean, lead.deviation).expected_gain())
        return gain * (1.0 - self._failures.risk(settings))

    def _proposal(self, one: Drawn) -> Proposal:
        """What to expect of it in a run, which is under the study's own traffic."""
        played = one.played
        if self._traffic is not None:
            played = self._to_limit(self._twin, one.settings, one.played.rate or self._start) or played
        right = math.exp(self._correction.at(self._point(one.settings)))
        rate = None if played.rate is None else played.rate * right
        return Proposal(one.settings, played, rate, played.goodput * right, one.gain)

    def _race(self, settings: Settings, bar: float | None) -> Played | None:
        """Play a setting where it would begin to be of interest; only one that holds that climbs on to its limit."""
        if bar is None or not self._search.searches_rate:
            return self._to_limit(self._scanned, settings, self._start)
        lead = self._lead(settings)
        return self._scanned.climb(settings, math.exp(bar - lead.mean - _REACH * lead.deviation), down=False)

    def _to_limit(self, twin: Twin, settings: Settings, start: float | None) -> Played | None:
        return twin.climb(settings, start) if self._search.searches_rate else twin.play(settings, start)

    def _log_merit(self, played: Played) -> float:
        """What settings are compared by: the limit, which lies between the rate held and the rung above, or goodput."""
        if self._search.searches_rate and played.rate is not None:
            return log_limit(played)
        return math.log(max(played.goodput, 1e-9))

    def _lead(self, settings: Settings) -> Lead:
        return self._correction.lead(self._point(settings), self._best_point)

    def _learn_errors(self) -> Correction:
        """Measured over predicted, of every setting whose runs say something of it."""
        errors = Errors()
        newest = self._search.trials[-MOST_ERRORS:]
        for trial in newest if any(t is self._best for t in newest) else [self._best, *newest]:
            said = _measured(trial, self._search.searches_rate)
            if said is None:
                continue
            measured, is_limit = said
            start = measured if self._search.searches_rate else self._start
            played = self._to_limit(self._twin, trial.settings, start)
            if played is None or not played.held:
                continue
            # A rate that was missed says no more than that the limit lies below.
            error = math.log(measured) - self._log_merit(played)
            errors.add(self._point(trial.settings), error, is_bound=not is_limit)
        return errors.correction()

    def _room_above(self, best: Trial) -> float:
        """The most that can be gained: at a given rate, requests beyond the offered ones cannot become good."""
        run = best.decisive
        if self._search.searches_rate or run is None or run.rate is None:
            return math.inf
        good = GOODPUT.at_offered_rate(run.meta["summary"], run.rate)
        return max(0.0, run.rate / good - 1) if good else math.inf

    def _point(self, settings: Settings) -> tuple[float, ...]:
        return unit_point(self._search.space, settings)


def _start_rate(search: Search) -> float | None:
    """Where the twin begins: the highest rate that was held, else the lowest that was missed; None in a closed loop."""
    tried = [(run.rate, run.held) for trial in search.trials for run in trial.runs if run.rate is not None]
    held = [rate for rate, was_held in tried if was_held]
    return max(held) if held else min((rate for rate, _ in tried), default=None)


def _measured(trial: Trial, searches_rate: bool) -> tuple[float, bool] | None:
    """What the runs of a trial say of its merit, and whether that is its limit or only above it; None for nothing."""
    run = trial.decisive
    if run is None or run.failure is not None or not run.is_valid:
        return None
    if not searches_rate:
        whole = run.goodput > 0 and run.meta["stopped_early"] is None
        return (run.goodput, True) if whole else None
    rate = run.rate
    assert rate is not None
    if not run.held:
        return rate, False
    missed = [r.rate for r in trial.runs if r.rate is not None and r.rate > rate and r.constraint > 0]
    return (math.sqrt(rate * min(missed)) if missed else rate * _ABOVE_HELD), True
