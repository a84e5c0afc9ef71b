"""Winner and default measured again, in turn, on fresh seeds: what the search found is noisy until this has spoken."""

import math
from typing import Any

from tuner.claim import Ceiling, Side, compare, make_side
from tuner.objective_claim import claim_by
from tuner.objectives import GOODPUT, Objective
from tuner.rate_search import LEAD, readable, step_below
from tuner.runner import Runner, at
from tuner.settings import Settings
from tuner.store import Run
from tuner.targets.bundled import DOES_NOT_FIT
from tuner.trial import Trial

PAIRS = 2
# Runs that it may need: both settings twice, and the default at its own rate; saturated ones are short.
EXPECTED_RUNS = 4
FRESH_SEEDS = 1000
SAME_RATE = 1.02
# Missing the SLO by a tenth of the requests: a second pair would only say so again.
HOPELESS = 0.1


class WinnerFailed(Exception):
    """The winner broke off, or did not fit any more, when it was measured again: it must not be recommended.

    Attributes:
        error_type: name of the exception behind that.
    """

    def __init__(self, error: str, error_type: str) -> None:
        super().__init__(error)
        self.error_type = error_type


class DefaultFailed(Exception):
    """The default settings broke off, or did not fit any more, when they were measured again."""


class Confirmation:
    """Makes the claim of a study.

    Args:
        runner: makes the runs.
        seed: of the study; the confirmation's own lie `FRESH_SEEDS` above it.
        may_step_down: the rate was found by a search, so a winner that misses the SLO may hold a step below it.
        objective: the main one, of which a gain is claimed; another than the goodput needs one load for all.
    """

    def __init__(self, runner: Runner, seed: int, *, may_step_down: bool, objective: Objective = GOODPUT) -> None:
        self._runner = runner
        self._seed = seed
        self._may_step_down = may_step_down
        self._objective = objective

    def confirm(self, best: Trial | None, baseline: Trial) -> dict[str, Any]:
        """The `confirmation` of `study.json`.

        Raises:
            WinnerFailed: `best`, which is not the baseline, failed this time.
        """
        try:
            return self._confirm(best, baseline)
        except DefaultFailed as failure:
            text = f"The default settings failed when they were measured again ({failure}): no gain is claimed."
            return unmeasured("cannot tell", text)

    def _confirm(self, best: Trial | None, baseline: Trial) -> dict[str, Any]:
        if best is None:
            return unmeasured("skipped", f"No setting that was tried meets {self._runner.slo}.")
        assert best.decisive is not None
        if best is baseline:
            return self._confirm_default(baseline, self._own_rate(baseline))
        self._runner.display.say("measuring the winner and the default again, in turn, on fresh seeds")
        own_rate = self._own_rate(baseline) if baseline.held else None
        rate = self._with_margin(best.fair_rate, own_rate)
        while True:
            winner, default = self._measure_in_turn(best.settings, baseline.settings, rate)
            if winner is None or default is None:
                return unmeasured(
                    "skipped", "The budget left no time to measure winner and default again: no gain is claimed."
                )
            if distrust := winner.distrust or default.distrust:
                return unmeasured(
                    "cannot tell", f"The runs that measured again cannot be trusted ({distrust}): no gain is claimed."
                )
            lower = self._step_below(rate, own_rate)
            if winner.meets or lower is None or not self._runner.has_time_for(lower, runs=2):
                break
            self._runner.display.say(f"the winner missed the SLO{at(rate)}; trying a step lower")
            rate = lower
        ceiling = None
        if winner.meets and not default.meets and own_rate is not None and rate is not None and own_rate < rate:
            # The default cannot hold the winner's rate: compare with what it delivers at its own.
            proven = default.verdict["state"] == "infeasible"
            fair = [r.rate * math.exp(-baseline.luck) for r in baseline.runs if r.constraint > 0 and r.rate is not None]
            ceiling = Ceiling(min([*(missed for missed in fair if missed > own_rate), rate]), proven)
            # Without time for that the search's own run stands in: the best of several, so it flatters the default.
            assert baseline.decisive is not None
            own = self._hold(baseline.settings, own_rate) or self._side(baseline.settings, [baseline.decisive])
            assert own is not None
            default = own
        claim = compare(default, winner, self._seed, ceiling)
        if self._objective != GOODPUT:
            claim = claim_by(self._objective, claim, default, winner, self._runner.store, self._seed)
        self._runner.display.say(claim["text"])
        return claim

    def _own_rate(self, baseline: Trial) -> float | None:
        """Where the default is measured: at the rate it held, or as far below the limit expected of it as the winner.

        At equal distance from both limits the gain is neither flattered nor belittled.
        """
        if self._may_step_down and baseline.expected is not None:
            return readable(baseline.expected / LEAD)
        return None if baseline.decisive is None else baseline.decisive.rate

    def _with_margin(self, rate: float | None, own_rate: float | None) -> float | None:
        """A little below the highest rate that a search found, which one lucky run has held; never below the default's.

        At the very limit a longer run would fall behind, and the gain that a short one shows with it.
        """
        if rate is None or not self._may_step_down:
            return rate
        lower = readable(rate / LEAD)
        return readable(rate) if own_rate is not None and lower <= own_rate * SAME_RATE else lower

    def _step_below(self, rate: float | None, own_rate: float | None) -> float | None:
        """The next lower rate to confirm at; None where the winner would lead the default no more."""
        if rate is None or not self._may_step_down:
            return None
        lower = step_below(rate)
        return lower if own_rate is None or lower > own_rate * SAME_RATE else None

    def _confirm_default(self, baseline: Trial, rate: float | None) -> dict[str, Any]:
        self._runner.display.say("no setting beat the default; measuring the default again on fresh seeds")
        claim = unmeasured("default is best", "No setting that was tried is better than the default settings.")
        side = self._hold(baseline.settings, rate)
        if side is not None:
            claim["baseline"] = compare(side, side, self._seed)["baseline"]
            again = "they hold the SLO" if side.meets else "they missed the SLO: their limit lies a little lower"
            if side.distrust:
                again = f"by runs that cannot be trusted ({side.distrust})"
            claim["text"] += f" Measured again{at(side.rate)}, {again}."
        return claim

    def _hold(self, settings: Settings, rate: float | None) -> Side | None:
        """A setting at the rate it held in the search, or as many steps below as it takes to hold one again."""
        side = self._measure_alone(settings, rate)
        while side is not None and not side.meets:
            lower = self._step_below(side.rate, None)
            if lower is None or not self._runner.has_time_for(lower, runs=2):
                break
            self._runner.display.say(f"the default missed the SLO{at(side.rate)}; trying a step lower")
            side = self._measure_alone(settings, lower) or side
        return side

    def _measure_in_turn(
        self, winner: Settings, default: Settings, rate: float | None
    ) -> tuple[Side | None, Side | None]:
        """Both settings at one rate, in the order A B B A, so that a drift of the machine hits both alike."""
        runs: dict[str, list[Run]] = {"winner": [], "default": []}
        settings = {"winner": winner, "default": default}
        for pair in range(PAIRS):
            if pair and not self._runner.has_time_for(rate, runs=2):
                break
            for label in sorted(settings, reverse=pair % 2 == 0):
                run = self._run(label, settings[label], rate, pair)
                if run is not None:
                    runs[label].append(run)
            if runs["winner"] and runs["winner"][-1].constraint > HOPELESS:
                break
        return self._side(winner, runs["winner"]), self._side(default, runs["default"])

    def _measure_alone(self, settings: Settings, rate: float | None) -> Side | None:
        runs = [self._run("default", settings, rate, pair) for pair in range(PAIRS)]
        return self._side(settings, [r for r in runs if r is not None])

    def _side(self, settings: Settings, runs: list[Run]) -> Side | None:
        return make_side(self._runner.store, settings, runs, self._runner.slo) if runs else None

    def _run(self, label: str, settings: Settings, rate: float | None, pair: int) -> Run | None:
        if not self._runner.has_time_for(rate):
            return None
        # With a given rate the goodput of both is claimed even where the SLO is missed, so every run goes to its end.
        seed = self._seed + FRESH_SEEDS + pair
        try:
            run = self._runner.run(f"confirm-{label}", settings, rate, seed, stop_when_settled=self._may_step_down)
        except DOES_NOT_FIT as error:
            if label == "winner":
                raise WinnerFailed(str(error), type(error).__name__) from error
            raise DefaultFailed(str(error)) from error
        if run.failure is not None:
            raise WinnerFailed(run.failure, run.failure_type) if label == "winner" else DefaultFailed(run.failure)
        return run


def unmeasured(verdict: str, text: str) -> dict[str, Any]:
    """A `confirmation` without a comparison."""
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
