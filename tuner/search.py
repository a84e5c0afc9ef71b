"""The study: baseline, search, confirmation. Every step is stored as soon as it is made, so that it can go on."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.errors import OutOfDeviceMemory, UserError
from tuner.confirmation import EXPECTED_RUNS, Confirmation, WinnerFailed
from tuner.front import StudyFront
from tuner.importance import importance
from tuner.notices import missed_everywhere
from tuner.objectives import DEFAULT_OBJECTIVES, Objective, best_text, rank
from tuner.prior import NO_PRIOR, Prior
from tuner.rate_search import LEAD, FixedRate, RateRace, RateSearch, RateStrategy
from tuner.runner import Runner
from tuner.settings import Settings
from tuner.space import SearchSpace
from tuner.store import best_record
from tuner.strategies.base import Search
from tuner.strategies.registry import strategy_named
from tuner.strategies.sampled import told_numbers
from tuner.targets.bundled import DOES_NOT_FIT
from tuner.trial import Trial
from tuner.twin.of_study import twin_of

if TYPE_CHECKING:
    import optuna

# Enough at once to fill the device for a while: a GPU serves many more side by side.
BURST_REQUESTS = {"cpu": 24, "gpu": 128}
# A saturated burst overstates what holds under an SLO.
START_SHARE_OF_BURST = 0.75
BASELINE_SHARE = 0.35


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """How to search.

    Attributes:
        rate: requests per second; None for the highest that holds, or for a closed loop.
        trials: most settings to try beside the baseline; None for no limit.
        seed: of the workload and of the strategy.
        command: the command line, to repeat it.
        warmup_follows_service: lengthen the warm-up to the time that requests are served for; false where the user
            has set it.
        strategy: what proposes settings, by its name.
        objectives: what settings are compared by, the main one first.
        prior: what earlier studies say.
    """

    rate: float | None
    trials: int | None
    seed: int
    command: Sequence[str] = ()
    warmup_follows_service: bool = True
    strategy: str = "tpe"
    objectives: Sequence[Objective] = DEFAULT_OBJECTIVES
    prior: Prior = NO_PRIOR


class BaselineFailed(UserError):
    """The default settings could not be measured to an end, for a reason that is worth keeping."""


class Tuner:
    """Runs a study from its start, or from where it was interrupted, to its end.

    Finished trials are taken from the record, and a run that is in the folder already is not made again.

    Args:
        runner: makes and finds the runs.
        space: what is searched; its fixed settings are the baseline.
        options: how.
    """

    def __init__(self, runner: Runner, space: SearchSpace, options: StudyOptions) -> None:
        self.runner = runner
        self.store = runner.store
        self.budget = runner.budget
        self.display = runner.display
        self.space = space
        self.options = options
        self.trials: list[Trial] = []
        self.front = StudyFront(options.objectives)

    def run(self) -> None:
        """Baseline, search, confirmation.

        Raises:
            BaselineFailed, OutOfDeviceMemory: the default settings cannot be measured; `study.json` says why, too.
            UserError: what was asked for cannot be.
            KeyboardInterrupt: passed on after the state was stored.
        """
        self._save(state="running", reason=None, confirmation=None)
        try:
            self._baseline()
            study = self._search()
            self._save(importance=importance(study))
            self._save(confirmation=self._confirm())
            self._save(**self.front.measured_again(self.runner, self.options.seed, self.trials))
            self.store.save_best(best_record(self.store.record))
            self._save(state="complete")
        except KeyboardInterrupt:
            self._save(state="interrupted")
            raise
        except Exception as error:
            self._save(state="failed", reason=str(error))
            raise

    @property
    def best(self) -> Trial | None:
        """The best setting so far; the baseline unless another one is ahead of it."""
        held = [t for t in self.trials if t.held]
        return max(held, key=lambda t: (rank(t, self.options.objectives), -t.number), default=None)

    # Baseline

    def _baseline(self) -> None:
        settings = self.space.fixed.canonical()
        trial = self._begin("baseline", settings)
        strategy: RateStrategy
        if self._searches_rate:
            start = START_SHARE_OF_BURST * self._burst(settings)
            if not self.store.runs:
                self.budget.require(2 * self.runner.estimate_s(start))
            strategy = RateSearch(start)
        else:
            strategy = FixedRate(self.options.rate)
        # Where the time is short, a coarser idea of the default's limit is better than no search.
        self._measure(trial, strategy, keep_s=(1 - BASELINE_SHARE) * (self.budget.total_s or 0.0))
        if trial.state == "failed" and trial.error_type is None:
            raise BaselineFailed(f"the baseline cannot be trusted ({trial.error}): give a longer --warmup or --window")
        if trial.state == "failed" and not any(run.held for run in trial.runs):
            raise BaselineFailed(f"the baseline failed, so there is nothing to improve on: {trial.error}")
        if not trial.held:
            self.display.say(missed_everywhere(trial, self.runner.slo))

    @property
    def _searches_rate(self) -> bool:
        return self.options.rate is None and self.runner.target.spec.is_open_loop

    def _burst(self, settings: Settings) -> float:
        """Requests per second of a burst, a first idea of the capacity; what it says of warm-ups is taken over."""
        record = self.store.record
        if record.get("burst_rate") is None:
            target = self.runner.target
            num_requests = BURST_REQUESTS["gpu" if target.on_gpu else "cpu"]
            self.display.say(f"sounding the capacity with {num_requests} requests at once")
            try:
                rate, served_s = target.burst(settings, num_requests, self.options.seed)
            except (UserError, OutOfDeviceMemory):
                raise
            except Exception as error:
                raise BaselineFailed(f"the baseline failed, so there is nothing to improve on: {error}") from error
            self._save(burst_rate=rate, burst_served_s=served_s)
        if self.options.warmup_follows_service:
            # An engine that starts empty needs about the time of one request to be as full as it will be.
            lengths = self.runner.lengths
            self.runner.lengths = replace(lengths, warmup_s=max(lengths.warmup_s, record.get("burst_served_s", 0.0)))
        return float(record["burst_rate"])

    # Search

    def _search(self) -> "optuna.Study":
        study = self.store.optuna_study([o.direction for o in self.options.objectives])
        self._restore(told_numbers(study))
        search = Search(
            *(study, self.space, self.options.seed, self.trials, self._used_share, self.display.say),
            thinking=self.display.thinking,
            make_twin=lambda: twin_of(self.runner, self.options.seed, self.options.prior.runs, self.options.objectives),
            searches_rate=self._searches_rate,
            objectives=self.options.objectives,
            prior=self.options.prior,
            luck={trial.settings: trial.luck for trial in self.trials if trial.luck},
        )
        strategy = strategy_named(self.options.strategy)(search)
        while self._may_start_trial():
            settings = strategy.propose()
            if settings is None:
                break
            trial = self._begin("search", settings, search.foretold(settings))
            self._measure(trial, self._rate_strategy(trial), keep_s=self._confirmation_s())
            strategy.learn(trial)
        return study

    def _used_share(self) -> float:
        """How much of the search is over, by its trials or its time, whichever is further on."""
        trials, left_s = self.options.trials, self.budget.left_s
        shares = [0.0] if trials is None else [(len(self.trials) - 1) / trials]
        if left_s is not None:
            used_s = sum(t.elapsed_s for t in self.trials[1:])
            left_s = max(0.0, left_s - self._confirmation_s())
            shares.append(used_s / (used_s + left_s) if left_s else 1.0)
        return min(1.0, max(shares))

    def _restore(self, told: set[int]) -> None:
        """Take the trials that an earlier process finished from the record."""
        runs = {run.path: run for run in self.store.runs}
        for stored in self.store.record["trials"]:
            if stored["kind"] == "search" and stored["number"] in told:
                self.trials.append(Trial.restored(stored, runs))
        if len(self.trials) > 1:
            self.display.say(f"{len(self.trials) - 1} settings were tried before; going on")
        self._save(trials=[])

    def _rate_strategy(self, trial: Trial) -> RateStrategy:
        if not self._searches_rate:
            return FixedRate(self.options.rate)
        predicted = None if trial.predicted is None else trial.predicted[0]
        if self.best is not None and self.best.fair_rate is not None:
            return RateRace.against(trial.under_own_traffic(self.best.fair_rate), predicted)
        # Nothing has held any rate yet: try the lowest that was missed.
        lowest = min((r.rate for t in self.trials for r in t.runs if r.rate is not None), default=1.0)
        return RateRace(predicted or lowest, best=lowest / LEAD)

    def _may_start_trial(self) -> bool:
        if self.options.trials is not None and len(self.trials) - 1 >= self.options.trials:
            return False
        return self.runner.has_time_for(self._best_rate, keep_s=self._confirmation_s())

    @property
    def _best_rate(self) -> float | None:
        best = self.best
        return best.decisive.rate if best is not None and best.decisive is not None else self.options.rate

    def _confirmation_s(self) -> float:
        runs = EXPECTED_RUNS + self.front.expected_runs(self.trials)
        return runs * self.runner.estimate_s(self._best_rate)

    def _begin(self, kind: str, settings: Settings, foretold: dict[str, Any] | None = None) -> Trial:
        number = max((t.number for t in self.trials), default=-1) + 1
        trial = Trial(number, kind, settings, **(foretold or {}))
        self.trials.append(trial)
        self._save()
        return trial

    def _measure(self, trial: Trial, strategy: RateStrategy, keep_s: float = 0.0) -> None:
        """Measure a trial's setting at the rates that `strategy` asks for, while more than `keep_s` is left."""
        started_s = self.budget.spent_s
        label = trial.kind if trial.kind == "baseline" else f"trial{trial.number}"
        try:
            while not strategy.is_over:
                rate = strategy.next_rate()
                # A baseline that holds no rate yet leaves nothing to compare with, so it may use all the time.
                kept_s = 0.0 if trial.kind == "baseline" and not trial.held else keep_s
                known = self.runner.knows(trial.settings, rate, self.options.seed)
                if trial.runs and not known and not self.runner.has_time_for(rate, keep_s=kept_s):
                    break
                run = self.runner.run(
                    *(label, trial.settings, rate, self.options.seed),
                    # At a given rate the windows are to be the same, so that what was done in them can be compared.
                    stop_when_held=not isinstance(strategy, FixedRate),
                    race=self._pace() if isinstance(strategy, FixedRate) else None,
                )
                trial.runs.append(run)
                self._save()
                if run.failure is not None:
                    trial.fail(run.failure, run.failure_type)
                    break
                if run.constraint <= 0 and not run.is_valid and not run.is_behind:
                    # It tells neither that the rate was held nor that it was missed.
                    trial.error = f"not valid: {run.distrust}"
                    break
                strategy.record(rate or 0.0, held=run.held)
        except DOES_NOT_FIT as error:
            trial.fail(str(error), type(error).__name__)
            self.display.say(f"{label}: {error}")
        missed = "behind" if trial.decisive is not None and trial.decisive.is_behind else "infeasible"
        trial.state = "complete" if trial.held else "failed" if trial.error else missed
        trial.elapsed_s = self.budget.spent_s - started_s
        self._save()

    def _pace(self) -> Sequence[int] | None:
        """Good requests of the best setting so far, slice by slice; None where more counts than those."""
        if self.best is None or self.best.decisive is None or tuple(self.options.objectives) != DEFAULT_OBJECTIVES:
            return None
        return self.store.good_by_slice(self.best.decisive)

    def _confirm(self) -> dict[str, Any]:
        may_step_down, objective = self._searches_rate, self.options.objectives[0]
        confirmation = Confirmation(self.runner, self.options.seed, may_step_down=may_step_down, objective=objective)
        while True:
            best = self.best
            try:
                return confirmation.confirm(best, self.trials[0])
            except WinnerFailed as failure:
                assert best is not None
                best.fail(str(failure), failure.error_type)
                self.display.say(f"the winner failed when it was measured again ({failure}); on to the next best")
                self._save()

    # The record

    def _save(self, **changes: Any) -> None:
        record = self.store.record
        record |= changes
        record["elapsed_s"] = self.budget.spent_s
        record["command"] = shlex.join(self.options.command)
        if self.trials:
            known = {t.number for t in self.trials}
            # Trials of an earlier process stay in the record until this one has come to them.
            later = [t for t in record["trials"] if t["number"] not in known]
            record["trials"] = [self.front.trial_record(t) for t in self.trials] + later
            record |= self.front.record(self.trials)
            record["best"] = self._recommendation()
        self.store.save()
        if self.best is not None and self.best.decisive is not None:
            self.display.best = best_text(self.best, self.options.objectives[0])

    def _recommendation(self) -> dict[str, Any] | None:
        """The winner when its lead was confirmed or is still to be; else the default, if that meets the SLO."""
        best, baseline = self.best, self.trials[0]
        if best is None or best.decisive is None:
            return None
        rate = best.decisive.rate
        confirmation = self.store.record["confirmation"]
        if confirmation is not None and confirmation["verdict"] == "better":
            rate = confirmation["winner"]["rate"]
        elif confirmation is not None and baseline.held and baseline.decisive is not None:
            best = baseline
            rate = confirmation["baseline"]["rate"] if confirmation["baseline"] else baseline.decisive.rate
        return {
            "trial": best.number,
            "settings": best.settings.to_dict(),
            "rate": rate,
            "is_default": best is baseline,
        }
