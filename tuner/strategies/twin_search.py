"""Search on the engine's twin: many settings are played, the best is measured, and the twin learns from that."""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.settings import Settings
from tuner.strategies.samplers import Tpe
from tuner.twin.twin import RUNG, Played, Twin

if TYPE_CHECKING:
    import optuna

CANDIDATES = 120
FIRST_RANDOM_CANDIDATES = 40
# Less than this share more goodput at the same rate is no gain worth a run.
SMALLEST_GAIN = 0.02


@dataclass(frozen=True, slots=True)
class Proposal:
    """Settings that the twin would measure, and what it expects of them."""

    settings: Settings
    expected: Played


class TwinSearch(Tpe):
    """Learns the device from all runs so far, plays settings on its twin, and proposes the best of them.

    Settings are compared by what the twin says of each, the best one that was measured too: where it is wrong about
    all alike, that changes nothing. It proposes nothing more when it expects no gain worth a run. Without a twin (no
    run has enough steps yet) settings are drawn as by TPE.
    """

    def propose(self) -> Settings | None:
        twin = self._search.make_twin()
        if twin is None:
            return super().propose()
        proposal = self._best_on(twin)
        if proposal is None:
            self._search.say(f"the twin expects no gain worth a run from any of {CANDIDATES} settings it played")
            return None
        params = self.space.params_of(proposal.settings)
        assert params is not None
        self._study.enqueue_trial(params)
        settings = self._ask()
        if settings is None:
            return super().propose()
        self._search.predicted[settings] = proposal.expected.rate, proposal.expected.goodput
        return settings

    def _best_on(self, twin: Twin) -> Proposal | None:
        start = self._start_rate()
        study, best = self._inner_study(), self._best_known(twin, start)
        found: Settings | None = None
        for _ in range(CANDIDATES):
            asked = study.ask()
            settings = self.space.suggest(asked)
            played = self._race(twin, settings, best, start)
            study.tell(asked, _merit(played))
            if played is not None and _is_gain(played, best) and self._search.known(settings) is None:
                found, best = settings, played
        return None if found is None or best is None else Proposal(found, best)

    def _start_rate(self) -> float | None:
        """Where the twin begins: the highest rate that was held, else the lowest that was missed."""
        rates = [run.rate for trial in self._search.trials for run in trial.runs if run.rate is not None and run.held]
        missed = [run.rate for trial in self._search.trials for run in trial.runs if run.rate is not None]
        return max(rates, default=min(missed, default=None))

    def _best_known(self, twin: Twin, start: float | None) -> Played | None:
        """What the twin says of the best setting that was measured."""
        held = [trial for trial in self._search.trials if trial.held]
        best = max(held, key=lambda trial: trial.rank, default=self._search.trials[0])
        return self._climb(twin, best.settings, start)

    def _climb(self, twin: Twin, settings: Settings, start: float | None) -> Played | None:
        return twin.climb(settings, start) if self._search.searches_rate else twin.play(settings, start)

    def _race(self, twin: Twin, settings: Settings, best: Played | None, start: float | None) -> Played | None:
        """Play a setting a rung above the best so far; only one that holds that climbs on."""
        if best is None or best.rate is None or not self._search.searches_rate:
            return self._climb(twin, settings, start)
        first = twin.play(settings, best.rate * RUNG)
        return twin.climb(settings, first.rate) if first is not None and first.held else first

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
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for trial in self._search.trials:
            params = self.space.params_of(trial.settings)
            if params is not None:
                study.enqueue_trial(params)
        return study


def _merit(played: Played | None) -> float:
    """What the sampler goes by: the rate held, and where none was, how many requests were good."""
    if played is None:
        return -1.0
    return (played.rate or 0.0) + played.goodput


def _is_gain(played: Played, best: Played | None) -> bool:
    """Whether a setting is expected to do better than the best one."""
    if not played.held:
        return False
    if best is None or not best.held:
        return True
    if played.rate is not None and best.rate is not None and played.rate > best.rate:
        return True
    return played.rate == best.rate and played.goodput > (1 + SMALLEST_GAIN) * best.goodput
