"""The study: baseline, search, confirmation. Every step is stored as soon as it is made, so that it can go on."""

import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.errors import KVCacheTooSmall, OutOfDeviceMemory, UserError
from tuner.budget import Budget
from tuner.confirm import Side, compare, make_side
from tuner.progress import ProgressDisplay
from tuner.rate_search import FixedRate, RateRace, RateSearch, RateStrategy
from tuner.settings import Settings
from tuner.space import SearchSpace
from tuner.store import Run, StudyStore
from tuner.targets.bundled import BundledTarget, Load
from tuner.units import format_duration
from workloads.slo import Slo

if TYPE_CHECKING:
    import optuna

# Enough at once to fill the device for a while: a GPU serves many more side by side.
BURST_REQUESTS = {"cpu": 24, "gpu": 128}
# A saturated burst overstates what holds under an SLO.
START_SHARE_OF_BURST = 0.7
MIN_WINDOW_REQUESTS = 20
CONFIRMATION_PAIRS = 2
# Runs that the confirmation may need: both settings twice, and the baseline at its own rate; saturated ones are short.
CONFIRMATION_RUNS = 5
SAME_RATE = 1.02
MAX_DUPLICATES = 30
FIRST_RANDOM_TRIALS = 5


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """How to search.

    Attributes:
        slo: what must hold.
        rate: requests per second; None for the highest that holds, or for a closed loop.
        budget_s, trials: limits of the search; None for none.
        window_s, warmup_s, drain_timeout_s: of every run; at low rates the window is longer, for enough requests.
        seed: of the workload and of the sampler.
        command: the command line, to repeat it.
    """

    slo: Slo
    rate: float | None
    budget_s: float | None
    trials: int | None
    window_s: float
    warmup_s: float
    drain_timeout_s: float
    seed: int
    command: Sequence[str] = ()


@dataclass(slots=True)
class Trial:
    """One setting and what its runs said."""

    number: int
    kind: str
    settings: Settings
    state: str = "running"
    error: str | None = None
    runs: list[Run] = field(default_factory=list)
    elapsed_s: float = 0.0

    @property
    def decisive(self) -> Run | None:
        """The run at the highest rate held, else the one at the lowest rate tried."""
        held = [r for r in self.runs if r.held]
        if held:
            return max(held, key=lambda r: r.rate or 0.0)
        return min(self.runs, key=lambda r: r.rate or 0.0, default=None)

    @property
    def held(self) -> bool:
        return self.decisive is not None and self.decisive.held

    @property
    def rank(self) -> tuple[float, float]:
        """Order of merit among settings that hold a rate."""
        run = self.decisive
        assert run is not None
        return (run.rate or 0.0, run.goodput)

    def to_dict(self) -> dict[str, Any]:
        """An entry of `trials` in `study.json`."""
        run = self.decisive
        return {
            "number": self.number,
            "kind": self.kind,
            "state": self.state,
            "settings": self.settings.to_dict(),
            "rate": run.rate if run is not None and run.held else None,
            "goodput": run.goodput if run is not None else None,
            "constraint": run.constraint if run is not None else 1.0 if self.state == "failed" else None,
            "error": self.error,
            "runs": [r.to_dict() for r in self.runs],
            "elapsed_s": self.elapsed_s,
        }


class Tuner:
    """Runs a study from its start, or from where it was interrupted, to its end.

    The search is a deterministic function of the runs' outcomes, and a run that is in the folder already is not made
    again: going on after an interruption means to start over and find everything done.
    """

    def __init__(
        self,
        target: BundledTarget,
        space: SearchSpace,
        options: StudyOptions,
        store: StudyStore,
        budget: Budget,
        display: ProgressDisplay,
    ) -> None:
        self.target = target
        self.space = space
        self.options = options
        self.store = store
        self.budget = budget
        self.display = display
        self.trials: list[Trial] = []
        self._run_seconds: list[float] = []

    def run(self) -> None:
        """Baseline, search, confirmation.

        Raises:
            UserError: the baseline cannot be measured; the reason is in `study.json` too.
            KeyboardInterrupt: passed on after the state was stored.
        """
        self._save(state="running", reason=None)
        try:
            self._baseline()
            study = self._search()
            self.store.record["importance"] = _importance(study)
            self._confirm()
            self._save(state="complete")
        except KeyboardInterrupt:
            self._save(state="interrupted")
            raise
        except (UserError, OutOfDeviceMemory) as error:
            self._save(state="failed", reason=str(error))
            raise
        self.store.save_best(self.best_record())

    # Baseline

    def _baseline(self) -> None:
        options, settings = self.options, self.space.fixed.canonical()
        self._refuse_short_budget(self._run_estimate_s(options.rate))
        trial = self._begin("baseline", settings)
        strategy: RateStrategy
        if options.rate is not None or not self.target.spec.is_open_loop:
            strategy = FixedRate(options.rate)
        else:
            start = START_SHARE_OF_BURST * self._burst(settings)
            self._refuse_short_budget(2 * self._run_estimate_s(start))
            strategy = RateSearch(start)
        self._measure(trial, strategy, keep_s=0.0)
        if trial.state == "failed":
            raise UserError(
                f"the baseline (the default settings) failed, so there is nothing to improve on: {trial.error}"
            )
        if not trial.held:
            rate = trial.decisive.rate if trial.decisive else None
            self.display.say(f"the default settings do not meet {options.slo}{_at(rate)}; looking for settings that do")

    def _burst(self, settings: Settings) -> float:
        known = self.store.record.get("burst_rate")
        if known is None:
            num_requests = BURST_REQUESTS["gpu" if self.target.on_gpu else "cpu"]
            self.display.say(f"sounding the capacity with {num_requests} requests at once")
            known = self.target.burst(settings, num_requests, self.options.seed)
            self.store.record["burst_rate"] = known
            self.store.save()
        return float(known)

    def _refuse_short_budget(self, needed_s: float) -> None:
        left = self.budget.left_s
        if left is not None and left < needed_s and not self.store.record["trials"]:
            raise UserError(
                f"--budget {format_duration(self.budget.total_s or 0)} is too short: the baseline alone needs about "
                f"{format_duration(needed_s)} more, and {format_duration(left)} are left; give several times that, "
                f"or a shorter --window"
            )

    # Search

    def _search(self) -> "optuna.Study":
        import optuna

        with warnings.catch_warnings():
            # Grouping is what lets the sampler see settings together although the chunk size is conditional.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                seed=self.options.seed, n_startup_trials=FIRST_RANDOM_TRIALS, multivariate=True, group=True
            )
        study = self.store.optuna_study(sampler)
        self._tell_baseline(study)
        interrupted = [t for t in study.get_trials(deepcopy=False) if t.state == optuna.trial.TrialState.RUNNING]
        for frozen in interrupted:
            # Its process ended in the middle: the same settings come first now, with the runs that were finished.
            study.tell(frozen.number, state=optuna.trial.TrialState.FAIL)
            if frozen.params:
                study.enqueue_trial(frozen.params)
        self._restore(study)
        duplicates = 0
        while self._may_start_trial() and duplicates < MAX_DUPLICATES:
            asked = study.ask()
            settings = self.space.suggest(asked)
            known = next((t for t in self.trials if t.settings == settings), None)
            duplicates = duplicates + 1 if known else 0
            trial = known or self._begin("search", settings)
            asked.set_user_attr("settings", settings.to_dict())
            if known is None:
                self._measure(trial, self._strategy(), keep_s=self._confirmation_s())
            value, constraint = _outcome(trial)
            asked.set_user_attr("trial", trial.number)
            asked.set_constraint("slo", constraint)
            study.tell(asked, value)
        if duplicates >= MAX_DUPLICATES:
            self.display.say("the sampler repeats settings that are known: the search space is used up")
        return study

    def _tell_baseline(self, study: "optuna.Study") -> None:
        import optuna

        if study.get_trials(deepcopy=False):
            return
        baseline = self.trials[0]
        params = self.space.params_of(baseline.settings)
        if params is None:
            return
        study.enqueue_trial(params)
        asked = study.ask()
        self.space.suggest(asked)
        asked.set_user_attr("trial", baseline.number)
        value, constraint = _outcome(baseline)
        asked.set_constraint("slo", constraint)
        study.tell(asked, value, state=optuna.trial.TrialState.COMPLETE)

    def _restore(self, study: "optuna.Study") -> None:
        """Take the trials that an earlier process finished from the record."""
        import optuna

        told = {t.user_attrs.get("trial") for t in study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))}
        runs = {run.path: run for run in self.store.runs}
        for stored in self.store.record["trials"]:
            if stored["kind"] != "search" or stored["number"] not in told:
                continue
            trial = Trial(stored["number"], "search", Settings.from_dict(stored["settings"]), stored["state"])
            trial.error, trial.elapsed_s = stored["error"], stored["elapsed_s"]
            trial.runs = [runs[r["path"]] for r in stored["runs"] if r["path"] in runs]
            self.trials.append(trial)
        if len(self.trials) > 1:
            self.display.say(f"{len(self.trials) - 1} trials were finished before; going on")
        self._save()

    def _strategy(self) -> RateStrategy:
        if self.options.rate is not None or not self.target.spec.is_open_loop:
            return FixedRate(self.options.rate)
        best = self.best
        if best is not None and best.decisive is not None and best.decisive.rate is not None:
            return RateRace(best.decisive.rate)
        lowest = min((r.rate for t in self.trials for r in t.runs if r.rate is not None), default=1.0)
        return RateRace(lowest / RateRace(1.0).step)

    def _may_start_trial(self) -> bool:
        searched = len(self.trials) - 1
        if self.options.trials is not None and searched >= self.options.trials:
            return False
        best = self.best.decisive.rate if self.best and self.best.decisive else self.options.rate
        return self.budget.allows(self._run_estimate_s(best) + self._confirmation_s())

    # Measuring

    def _begin(self, kind: str, settings: Settings) -> Trial:
        trial = Trial(len(self.trials), kind, settings)
        self.trials.append(trial)
        self._save()
        return trial

    def _measure(self, trial: Trial, strategy: RateStrategy, keep_s: float) -> None:
        """Measure a trial's setting at the rates that `strategy` asks for, while more than `keep_s` is left."""
        started_s = self.budget.spent_s
        label = trial.kind if trial.kind == "baseline" else f"trial{trial.number}"
        try:
            while not strategy.is_over:
                rate = strategy.next_rate()
                if trial.runs and not self.budget.allows(self._run_estimate_s(rate) + keep_s):
                    break
                run = self._run(label, trial.settings, rate, self.options.seed)
                trial.runs.append(run)
                self._save()
                if run.failure is not None:
                    trial.error = run.failure
                    break
                strategy.record(rate or 0.0, held=run.held)
        except (KVCacheTooSmall, OutOfDeviceMemory) as error:
            trial.error = str(error)
            self.display.say(f"{label}: {error}")
        trial.state = "complete" if trial.held else "failed" if trial.error else "infeasible"
        trial.elapsed_s = self.budget.spent_s - started_s
        self._save()

    def _run(
        self, label: str, settings: Settings, rate: float | None, seed: int, *, stop_when_settled: bool = True
    ) -> Run:
        """Measure once, or find the same run made before."""
        load = self._load(rate, seed)
        known = self.store.find_run(settings, load)
        if known is not None:
            return known
        started_s = self.budget.spent_s
        update = self.display.run_started(f"{label}{_at(rate)}")
        measured = self.target.measure(
            settings, load, self.options.slo, stop_when_settled=stop_when_settled, on_progress=update
        )
        self.display.run_ended()
        if measured.meta["stopped_early"] is None:
            self._run_seconds.append(self.budget.spent_s - started_s)
        name = label if rate is None else f"{label}-{rate:.3g}rps"
        run = self.store.add_run(name, measured)
        self.display.say(f"{label}{_at(rate)}: {_describe(run)}")
        return run

    def _load(self, rate: float | None, seed: int) -> Load:
        options = self.options
        window_s = options.window_s if rate is None else max(options.window_s, MIN_WINDOW_REQUESTS / rate)
        return Load(rate, seed, options.warmup_s, window_s, options.drain_timeout_s)

    def _run_estimate_s(self, rate: float | None) -> float:
        """Wall time of a run that goes to its end."""
        if self.target.simulated:
            return max(self._run_seconds, default=1.0)
        load = self._load(rate, 0)
        planned = load.warmup_s + load.window_s
        drains = [s - planned for s in self._run_seconds if s > planned]
        return planned + (sum(drains) / len(drains) if drains else 0.2 * planned)

    def _confirmation_s(self) -> float:
        best = self.best.decisive.rate if self.best and self.best.decisive else self.options.rate
        return CONFIRMATION_RUNS * self._run_estimate_s(best)

    # Confirmation

    @property
    def best(self) -> Trial | None:
        """The best setting so far; the baseline unless another one is ahead of it."""
        held = [t for t in self.trials if t.held]
        return max(held, key=lambda t: (t.rank, -t.number), default=None)

    def _confirm(self) -> None:
        best, baseline = self.best, self.trials[0]
        if best is None:
            text = f"No setting that was tried meets {self.options.slo}{_at(self.options.rate)}."
            self.store.record["confirmation"] = _empty_confirmation("skipped", text)
            return
        assert best.decisive is not None
        if best is baseline:
            self._confirm_default(best.decisive.rate)
            return
        self.display.say("measuring the winner and the default again, in turn, on fresh seeds")
        own_rate = baseline.decisive.rate if baseline.held and baseline.decisive else None
        rate = best.decisive.rate
        while True:
            winner, default = self._measure_in_turn(best.settings, baseline.settings, rate)
            if winner is None or default is None:
                text = "The budget left no time to measure the winner and the default again: no gain is claimed."
                self.store.record["confirmation"] = _empty_confirmation("skipped", text)
                return
            lower = None if rate is None or self.options.rate is not None else rate / RateRace(1.0).step
            may_step_down = lower is not None and (own_rate is None or lower > own_rate * SAME_RATE)
            if winner.meets or not may_step_down or not self._time_for_pair(lower):
                break
            self.display.say(f"the winner missed the SLO{_at(rate)}; trying a step lower")
            rate = lower
        if own_rate is not None and rate is not None and not default.meets and own_rate < rate:
            # The default cannot hold the winner's rate: compare with what it delivers at its own.
            default = self._side("default", baseline.settings, own_rate) or default
        self.store.record["confirmation"] = compare(default, winner, self.options.seed)
        self.display.say(self.store.record["confirmation"]["text"])

    def _confirm_default(self, rate: float | None) -> None:
        self.display.say("no setting beat the default; measuring the default again on fresh seeds")
        side = self._side("default", self.trials[0].settings, rate)
        text = "No setting that was tried is better than the default settings."
        record = _empty_confirmation("default is best", text)
        if side is not None:
            interval = compare(side, side, self.options.seed)["baseline"]
            record["baseline"] = interval
            if not side.meets:
                record["text"] += (
                    f" Measured again{_at(rate)}, they missed the SLO: their own limit lies a little lower."
                )
        self.store.record["confirmation"] = record

    def _time_for_pair(self, rate: float | None) -> bool:
        return self.budget.allows(2 * self._run_estimate_s(rate))

    def _measure_in_turn(
        self, winner: Settings, default: Settings, rate: float | None
    ) -> tuple[Side | None, Side | None]:
        """Both settings at one rate, in the order A B B A, so that a drift of the machine hits both alike."""
        runs: dict[str, list[Run]] = {"winner": [], "default": []}
        sides = {"winner": winner, "default": default}
        for pair in range(CONFIRMATION_PAIRS):
            if pair and not self._time_for_pair(rate):
                break
            for label in sorted(sides, reverse=pair % 2 == 0):
                run = self._confirmation_run(label, sides[label], rate, pair)
                if run is not None:
                    runs[label].append(run)
            if runs["winner"] and runs["winner"][-1].constraint > 0.1:
                break  # far from the SLO: a second pair would only say so again
        made = (make_side(self.store, sides[k], runs[k], self.options.slo) if runs[k] else None for k in sides)
        return next(made), next(made)

    def _side(self, label: str, settings: Settings, rate: float | None) -> Side | None:
        runs = []
        for pair in range(CONFIRMATION_PAIRS):
            run = self._confirmation_run(label, settings, rate, pair)
            if run is not None:
                runs.append(run)
        return make_side(self.store, settings, runs, self.options.slo) if runs else None

    def _confirmation_run(self, label: str, settings: Settings, rate: float | None, pair: int) -> Run | None:
        if not self.budget.allows(self._run_estimate_s(rate)):
            return None
        seed = self.options.seed + 1000 + pair
        return self._run(f"confirm-{label}", settings, rate, seed)

    # The record

    def best_record(self) -> dict[str, Any]:
        """The content of `best.json`: the settings to use, with the evidence for them."""
        record = self.store.record
        best = record["best"]
        return {
            "schema_version": record["schema_version"],
            "settings": best["settings"] if best else None,
            "rate": best["rate"] if best else None,
            "is_default": best["is_default"] if best else None,
            "slo": record["slo"],
            "model": record["model"],
            "device": record["device"],
            "workload": record["workload"],
            "simulated": record["simulated"],
            "confirmation": record["confirmation"],
        }

    def _save(self, **changes: Any) -> None:
        record = self.store.record
        record |= changes
        record["elapsed_s"] = self.budget.spent_s
        if self.trials:
            known = {t.number for t in self.trials}
            # Trials of an earlier process stay in the record until this one has come to them.
            later = [t for t in record["trials"] if t["number"] not in known]
            record["trials"] = [t.to_dict() for t in self.trials] + later
        record["best"] = self._recommendation()
        record["command"] = shlex.join(self.options.command)
        self.store.save()
        best = self.best
        if best is not None and best.decisive is not None:
            self.display.best = f"best {best.decisive.goodput:.3g} good/s"

    def _recommendation(self) -> dict[str, Any] | None:
        """The winner when its lead was confirmed or is still to be; else the default, if that meets the SLO."""
        best = self.best
        if best is None or best.decisive is None:
            return None
        baseline, confirmation = self.trials[0], self.store.record["confirmation"]
        rate = best.decisive.rate
        if confirmation and best is not baseline:
            if confirmation["verdict"] == "better":
                rate = confirmation["winner"]["rate"]
            elif baseline.held and baseline.decisive is not None:
                best, rate = baseline, baseline.decisive.rate
        return {
            "trial": best.number,
            "settings": best.settings.to_dict(),
            "rate": rate,
            "is_default": best is baseline,
        }


def _outcome(trial: Trial) -> tuple[float, float]:
    """Value and constraint for Optuna. A trial that failed served nobody: goodput 0, and the SLO fully missed."""
    run = trial.decisive
    if run is None or trial.state == "failed":
        return 0.0, 1.0
    return run.goodput, run.constraint if run.held else max(run.constraint, 1e-6)


def _importance(study: "optuna.Study") -> dict[str, float]:
    """Share of each parameter in the variation of goodput; empty with too few trials to tell."""
    import optuna

    complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if len(complete) < 6 or len({t.value for t in complete}) < 2:
        return {}
    try:
        return dict(
            optuna.importance.get_param_importances(study, evaluator=optuna.importance.PedAnovaImportanceEvaluator())
        )
    except (ValueError, RuntimeError):
        return {}


def _empty_confirmation(verdict: str, text: str) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "metric": "request_goodput",
        "gain": None,
        "gain_low": None,
        "gain_high": None,
        "baseline": None,
        "winner": None,
        "text": text,
    }


def _at(rate: float | None) -> str:
    return "" if rate is None else f" at {rate:.3g} requests/s"


def _describe(run: Run) -> str:
    summary = run.meta["summary"]
    if run.failure:
        return f"failed: {run.failure}"
    p95 = summary["p95_ttft_ms"]
    parts = [
        "held" if run.held else "missed the SLO" if run.constraint > 0 else "not valid",
        f"{run.goodput:.3g} good requests/s",
        "no request answered" if p95 is None else f"p95 TTFT {p95:.0f} ms",
    ]
    if run.meta["stopped_early"]:
        parts.append(run.meta["stopped_early"])
    if not run.is_valid:
        parts += (c["detail"] for c in run.meta["validity"]["checks"] if not c["ok"])
    return ", ".join(parts)
