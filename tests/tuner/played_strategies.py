"""Strategies at work on a made-up engine: a formula says what goodput settings have, and no time passes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import optuna

from tuner.prior import NO_PRIOR, Prior
from tuner.settings import Settings
from tuner.space import SearchSpace
from tuner.store import Run
from tuner.strategies.base import Search, Strategy
from tuner.strategies.registry import STRATEGIES
from tuner.strategies.sampled import told_numbers
from tuner.trial import Trial

MISSED_ABOVE_SEATS = 64


def seats_up_to_a_knee(settings: Settings) -> tuple[float, float]:
    """Goodput, and the missing share of requests: seats help, chunks cost, and too many seats miss the SLO."""
    goodput = settings.max_num_seqs * settings.gpu_memory_utilization / (1.0 + settings.chunk_size / 1000)
    return goodput, (settings.max_num_seqs - MISSED_ABOVE_SEATS) / 1000


def finished(number: int, settings: Settings, goodput: float, missing: float) -> Trial:
    """A trial with one run; `missing` is how far the SLO was missed, at most 0 when it was met."""
    bound = {"required_share": 0.95, "met_share": 0.95 - missing}
    meta: dict[str, Any] = {
        "rate": None,
        "summary": {"request_goodput": goodput},
        "validity": {"valid": True, "checks": []},
        "stopped_early": None,
        "verdict": {"state": "undecided", "bounds": [bound]},
    }
    trial = Trial(number, "search" if number else "baseline", settings, runs=[Run(f"runs/{number}", meta)])
    trial.state = "complete" if trial.held else "infeasible"
    return trial


def crashed(number: int, settings: Settings) -> Trial:
    """A trial whose first step failed."""
    trial = Trial(number, "search", settings)
    trial.fail("RuntimeError: crash", "RuntimeError")
    return trial


@dataclass
class Played:
    """A study of a strategy: `go_on` is what a new process does with it; settings for which `fails` holds crash."""

    name: str
    space: SearchSpace
    seed: int = 0
    allowed: int = 40
    formula: Callable[[Settings], tuple[float, float]] = seats_up_to_a_knee
    fails: Callable[[Settings], bool] = lambda _: False
    prior: Prior = NO_PRIOR
    study: optuna.Study = field(init=False)
    trials: list[Trial] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    strategy: Strategy = field(init=False)

    def __post_init__(self) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(direction="maximize")
        settings = self.space.fixed.canonical()
        self.trials.append(finished(0, settings, *self.formula(settings)))
        self.go_on()

    def go_on(self) -> None:
        """A process that takes the study up: trials that Optuna was not told of are not there."""
        told = told_numbers(self.study)
        self.trials[1:] = [t for t in self.trials[1:] if t.number in told]
        used_share = lambda: (len(self.trials) - 1) / self.allowed  # noqa: E731
        search = Search(self.study, self.space, self.seed, self.trials, used_share, self.said.append, prior=self.prior)
        self.strategy = STRATEGIES[self.name](search)

    def play(self, count: int) -> list[Settings]:
        """At most so many further trials; what was proposed for them."""
        proposed: list[Settings] = []
        while len(proposed) < count:
            settings = self.strategy.propose()
            if settings is None:
                break
            proposed.append(settings)
            number = len(self.trials)
            failed = self.fails(settings)
            trial = crashed(number, settings) if failed else finished(number, settings, *self.formula(settings))
            self.trials.append(trial)
            self.strategy.learn(trial)
        return proposed
