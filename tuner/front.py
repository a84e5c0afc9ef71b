"""The front of a study with several objectives: settings of which none is better in one without losing in another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.claim import make_side
from tuner.confirmation import FRESH_SEEDS
from tuner.objectives import DEFAULT_OBJECTIVES, Objective, rank
from tuner.runner import Runner
from tuner.targets.bundled import DOES_NOT_FIT
from tuner.trial import Trial

Values = Mapping[str, float | None]
"""Values by the names of the objectives; throughputs at the offered rate (see `Objective.at_offered_rate`)."""

DOMINATED = "dominated when measured again"
MISSED = "missed the SLO when measured again"
# Kept free of the search's time for measuring the front again; a front that is larger is measured as far as time goes.
MOST_EXPECTED_RUNS = 6


@dataclass(frozen=True, slots=True)
class Point:
    """What is known of one setting.

    Attributes:
        trial: its number.
        first: values by the run of the search.
        pooled: values over that run and another on a fresh seed; None where there was no time for that.
        left: why it is no longer on the front that the search found; empty while it is.
    """

    trial: int
    first: Values
    pooled: Values | None = None
    left: str = ""

    @property
    def values(self) -> Values:
        """The best that is known."""
        return self.first if self.pooled is None else self.pooled

    def to_dict(self, default: "Point | None") -> dict[str, Any]:
        """An entry of `front` in `study.json`, with the change against the default over runs of the same seeds."""
        entry: dict[str, Any] = {"trial": self.trial, "values": dict(self.values), "change": None}
        entry["measured"] = 1 if self.pooled is None else 2
        if default is not None:
            both_again = self.pooled is not None and default.pooled is not None
            ours, theirs = (self.values, default.values) if both_again else (self.first, default.first)
            entry["change"] = {name: _change(theirs[name], ours[name]) for name in ours}
        return entry | ({"reason": self.left} if self.left else {})


def dominates(one: Values, other: Values, objectives: Sequence[Objective]) -> bool:
    """At least as good in every objective, and better in one."""
    ours, theirs = ([o.merit(values[o.name]) for o in objectives] for values in (one, other))
    return ours != theirs and all(a >= b for a, b in zip(ours, theirs, strict=True))


def undominated(points: Sequence[Point], objectives: Sequence[Objective]) -> list[Point]:
    """Those that no other of them dominates, in their order."""
    return [point for point in points if not any(dominates(other.values, point.values, objectives) for other in points)]


def values_of(trial: Trial, objectives: Sequence[Objective]) -> Values | None:
    """A trial's values by its run in the search; None where it has none that went as far as to be judged."""
    run = trial.decisive
    if run is None or run.failure is not None or trial.error_type is not None:
        return None
    return {objective.name: objective.at_offered_rate(run.meta["summary"], run.rate) for objective in objectives}


def search_front(trials: Sequence[Trial], objectives: Sequence[Objective]) -> list[Trial]:
    """Trials that met the SLO and are not dominated, the best by the first objective first."""
    held = {t.number: t for t in trials if t.held}
    points = [Point(n, values) for n, t in held.items() if (values := values_of(t, objectives)) is not None]
    front = [held[point.trial] for point in undominated(points, objectives)]
    return sorted(front, key=lambda t: rank(t, objectives), reverse=True)


class StudyFront:
    """The front of a study as far as it is known; with one objective there is none, and all of this is empty.

    The search finds it as the best of many noisy runs, so some of it is luck. So it is measured once more, on arrivals
    that the search has not seen: all on the same fresh seed, which is the first of the confirmation's, so that the runs
    that were made there need not be made again.

    Args:
        objectives: what settings are compared by, the main one first.
    """

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._objectives = objectives
        self._again: dict[str, Any] | None = None

    def expected_runs(self, trials: Sequence[Trial]) -> int:
        """Runs that measuring it again may need beside the confirmation's."""
        if len(self._objectives) == 1:
            return 0
        return min(MOST_EXPECTED_RUNS, max(0, len(search_front(trials, self._objectives)) - 1))

    def record(self, trials: Sequence[Trial]) -> dict[str, Any]:
        """What it adds to `study.json`: the `front`, by what the search measured until it was measured again."""
        if len(self._objectives) == 1:
            return {}
        if self._again is not None:
            return {"front": self._again}
        found = [_first_point(t, self._objectives) for t in search_front(trials, self._objectives)]
        return {"front": _record(_first_point(trials[0], self._objectives), found)}

    def trial_record(self, trial: Trial) -> dict[str, Any]:
        """An entry of `trials` in `study.json`, with its values where the goodput is not the only objective."""
        if tuple(self._objectives) == DEFAULT_OBJECTIVES:
            return trial.to_dict()
        return trial.to_dict() | {"values": values_of(trial, self._objectives)}

    def measured_again(self, runner: Runner, seed: int, trials: Sequence[Trial]) -> dict[str, Any]:
        """The `record` after the default and every member were measured once more, as far as time was left.

        Two settings are compared over both runs where both were measured again; else by the runs of the search, in
        which neither dominated the other.

        Args:
            runner: makes the runs, and finds those that were made before.
            seed: of the study.
            trials: all, the default first.
        """
        if len(self._objectives) == 1:
            return {}
        found = search_front(trials, self._objectives)
        default = self._once_more(runner, seed, trials[0])
        again = [default if t is trials[0] else self._once_more(runner, seed, t) for t in found]
        points = [point for point in again if point is not None]
        pooled = [point for point in points if point.pooled is not None and not point.left]
        best = undominated(pooled, self._objectives)
        points = [replace(p, left=DOMINATED) if p in pooled and p not in best else p for p in points]
        points.sort(key=lambda p: [o.merit(p.values[o.name]) for o in self._objectives], reverse=True)
        self._again = _record(default, points)
        return self.record(trials)

    def _once_more(self, runner: Runner, seed: int, trial: Trial) -> Point | None:
        point, first, seed = _first_point(trial, self._objectives), trial.decisive, seed + FRESH_SEEDS
        if point is None or first is None:
            return None
        known = runner.store.find_run(trial.settings, runner.lengths.load(first.rate, seed))
        if known is None and not runner.has_time_for(first.rate):
            return point
        label = f"front-trial{trial.number}"
        try:
            run = known or runner.run(label, trial.settings, first.rate, seed, stop_when_settled=False)
        except DOES_NOT_FIT as error:
            return replace(point, left=str(error))
        # A default that missed the SLO may have been stopped in the search: then there is one whole run of it.
        whole = [r for r in (first, run) if r.meta["stopped_early"] is None] or [run]
        side = make_side(runner.store, trial.settings, whole, runner.slo)
        pooled = {o.name: o.at_offered_rate(side.summary, side.rate) for o in self._objectives}
        return replace(point, pooled=pooled, left=run.failure or side.distrust or ("" if side.meets else MISSED))


def _first_point(trial: Trial, objectives: Sequence[Objective]) -> Point | None:
    values = values_of(trial, objectives)
    return None if values is None else Point(trial.number, values)


def _record(default: Point | None, points: Sequence[Point | None]) -> dict[str, Any]:
    known = [point for point in points if point is not None]
    return {
        "default": None if default is None else replace(default, left="").to_dict(None),
        "members": [point.to_dict(default) for point in known if not point.left],
        "left": [point.to_dict(default) for point in known if point.left],
    }


def _change(before: float | None, after: float | None) -> float | None:
    return after / before - 1.0 if before and after is not None else None
