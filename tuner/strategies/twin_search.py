"""Search on the engine's twin: many settings are played, the most promising is measured, the twin learns from it."""

from tuner.failures import failure_model
from tuner.objectives import DEFAULT_OBJECTIVES, OBJECTIVES
from tuner.settings import Settings
from tuner.strategies.base import Search
from tuner.strategies.front_scout import Expected, FrontScout
from tuner.strategies.samplers import Tpe
from tuner.strategies.scout import Proposal, Scout
from tuner.trial import Trial

FIRST_CANDIDATES = 120
# Later ones, those among them that looked promising before.
CANDIDATES = 30
# Steps of the engine to play for a proposal; some twenty seconds of a core, where the settings are not enough before.
FIRST_STEPS, STEPS = 60_000, 25_000
_WORTH_SAYING = 0.05
# A smaller gain than this is not worth the runs that it takes.
SMALLEST_GAIN = 0.01


class TwinSearch(Tpe):
    """Learns the device from all runs so far, plays settings on its twin, and proposes the one that promises most.

    The promise is the expected improvement, of the front where there are several objectives: high where the twin says
    so, and where it has erred or nothing alike was measured yet. What was best in earlier studies comes first. It
    proposes nothing more when no setting is expected to gain what its runs are worth. Without a twin (no run has enough
    steps yet) settings are drawn as by TPE.
    """

    def __init__(self, search: Search) -> None:
        super().__init__(search)
        self._promising: tuple[Settings, ...] = ()
        self._played = 0
        self._scout: Scout | FrontScout | None = None

    def propose(self) -> Settings | None:
        has_next = self._some_wait() or self._next_try(failure_model(self._search)) is not None
        scout = None if has_next else self._scout or self._make_scout()
        if scout is None:
            return super().propose()
        more = bool(self._promising)
        proposal = scout.best_of(CANDIDATES if more else FIRST_CANDIDATES, STEPS if more else FIRST_STEPS)
        self._promising = scout.promising
        self._played += scout.num_played
        if proposal is None or proposal.gain < SMALLEST_GAIN:
            self._search.say(f"of {self._played} settings that the twin played, none promises a gain worth its runs")
            return None
        params = self.space.params_of(proposal.settings)
        assert params is not None
        self._study.enqueue_trial(params)
        settings = self._ask()
        if settings is None:
            return super().propose()
        self._search.predicted[settings] = proposal.rate, proposal.goodput
        if proposal.values:
            self._search.predicted_values[settings] = proposal.values
        if proposal.values or (self._search.searches_rate and proposal.rate is not None):
            self._search.say(f"{self._played} settings played on the twin; it expects {_expectation(proposal)}")
        return settings

    def learn(self, trial: Trial) -> None:
        super().learn(trial)
        # Now, since what was measured last may be the last that is.
        self._scout = self._make_scout()

    def _make_scout(self) -> Scout | FrontScout | None:
        """With a twin that knows all runs so far, by which it judges them anew; None while they teach too little."""
        twin = self._search.make_twin()
        if twin is None:
            return None
        kind = Scout if tuple(self._search.objectives) == DEFAULT_OBJECTIVES else FrontScout
        return kind(self._search, twin, self._promising)


def _expectation(proposal: Proposal | Expected) -> str:
    """What is expected of a run, and how far that was guessed."""
    outside = proposal.played.extrapolated
    named = [(OBJECTIVES[name], value) for name, value in proposal.values.items()]
    values = ", ".join(f"{objective.title} {value:,.4g} {objective.unit}" for objective, value in named)
    said = f"{values or f'{proposal.rate:.3g} requests/s'} of the next"
    return f"{said} ({outside:.0%} of its steps are unlike any measured)" if outside >= _WORTH_SAYING else said
