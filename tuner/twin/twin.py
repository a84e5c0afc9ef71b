"""The engine's twin in a study: how a setting would do, played in a fraction of a second.

What it says chooses what to measure. It is never reported as a measurement.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.build import SIMULATED_PREFIX
from engine.executor.learnt_device import LearntExecutor
from tuner.objectives import Objective
from tuner.rate_search import readable
from tuner.settings import Settings
from tuner.targets.bundled import DOES_NOT_FIT, BundledTarget, Load
from workloads.driver import drive
from workloads.metrics import in_window, summarize
from workloads.plan import WorkloadPlan, make_plan
from workloads.slo import Slo

# Rates are tried on a ladder, so that all settings are played under the same few plans of traffic.
RUNG = 1.03
LONGEST_STRIDE = 64


@dataclass(frozen=True, slots=True)
class Played:
    """What the twin says of a setting.

    Attributes:
        rate: the highest of the ladder that it holds within the SLO, requests per second; None for none that was tried,
            and for a closed loop.
        goodput: good requests per second there, or at the lowest rate tried.
        held: the SLO held there.
        extrapolated: share of the steps there that lie well outside of what the device's step times were learnt from.
        values: of the twin's objectives, in their order; None where nothing was seen.
        excess: see `log_excess`; 0 where the twin has no objectives.
    """

    rate: float | None
    goodput: float
    held: bool
    extrapolated: float = 0.0
    values: tuple[float | None, ...] = ()
    excess: float = 0.0


# Of a bound of which nothing was observed: as if it were missed by a factor of a thousand.
UNOBSERVED = 7.0


def log_excess(bounds: Iterable[Mapping[str, Any]]) -> float:
    """Logarithm of the worst observed statistic over its bound: below 0 when all are met.

    Args:
        bounds: `verdict.bounds` of `run.json`.
    """
    return max(_one_excess(bound["observed_ms"], bound["bound_ms"]) for bound in bounds)


def _one_excess(observed: float | None, most: float) -> float:
    if observed is None:
        return UNOBSERVED
    # As far within a bound as nothing at all, such as no time in the queue, is no further than what can be told.
    return max(-UNOBSERVED, math.log(observed / most)) if observed > 0 else -UNOBSERVED


@dataclass(slots=True)
class Twin:
    """Plays a study's workload on a learnt device.

    Attributes:
        file: of the learnt device.
        like: the target that it is the twin of.
        slo: what the requests must meet.
        load: lengths and seed of the runs; its rate is left aside.
        settings: some that fit, to begin with.
        steps: of the engine, in all that was played.
        most_requests: shortens the window to about so many; None for windows as long as the real ones.
        objectives: of which a play tells the values, at the rate at which it is.

    Raises:
        KVCacheTooSmall: by what was learnt of the memory, not even those fit.
    """

    file: Path
    like: BundledTarget
    slo: Slo
    load: Load
    settings: Settings
    most_requests: int | None = None
    objectives: Sequence[Objective] = ()
    steps: int = 0
    _target: BundledTarget = field(init=False)
    _plans: dict[float | None, WorkloadPlan] = field(init=False, default_factory=dict)
    _played: dict[tuple[Settings, float | None], Played | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        budget = self.like.engine.kv_budget
        options = replace(
            self.like.options,
            device=f"{SIMULATED_PREFIX}{self.file}",
            max_model_len=self.like.executor.max_model_len,
            device_memory_bytes=budget.total if budget else None,
            tensor_parallel_size=1,  # the learnt device is what one rank of them is
        )
        self._target = BundledTarget(options, self.like.spec, self.settings)

    def under(self, seed: int, requests: int) -> "Twin":
        """The same device under other traffic, with windows of about so many requests."""
        load = replace(self.load, seed=seed, window_s=math.inf)
        return replace(self, load=load, most_requests=requests, steps=0)

    def play(self, settings: Settings, rate: float | None) -> Played | None:
        """One run; None when the settings do not fit."""
        asked = settings, rate
        if asked not in self._played:
            self._played[asked] = self._play(settings, rate)
        return self._played[asked]

    def climb(self, settings: Settings, start: float | None, *, down: bool = True) -> Played | None:
        """The highest rate of the ladder that a setting holds; None when it does not fit.

        In strides that double, from the rung nearest to `start`, until there is one that is held and one that is not,
        then halving between them.

        Args:
            down: go below `start` where that is not held; a setting that has to hold it need not be followed further.
        """
        if start is None:
            return self.play(settings, None)
        rung, stride = round(math.log(start, RUNG)), 1
        best = self.play(settings, _rate_of(rung))
        if best is None or not (best.held or down):
            return best
        held, missed = (rung, None) if best.held else (None, rung)
        while (held is None or missed is None) and stride <= LONGEST_STRIDE:
            rung = held + stride if held is not None else missed - stride  # type: ignore[operator]
            stride *= 2
            best, held, missed = self._step(settings, rung, best, held, missed)
        while held is not None and missed is not None and missed - held > 1:
            best, held, missed = self._step(settings, (held + missed) // 2, best, held, missed)
        return best

    def _step(
        self, settings: Settings, rung: int, best: Played, held: int | None, missed: int | None
    ) -> tuple[Played, int | None, int | None]:
        played = self.play(settings, _rate_of(rung))
        assert played is not None
        if played.held:
            return played, rung, missed
        return (played if held is None else best), held, rung

    def _play(self, settings: Settings, rate: float | None) -> Played | None:
        target = self._target
        assert isinstance(target.executor, LearntExecutor)
        target.restart(self.load.seed)
        try:
            target.prepare(settings)
        except DOES_NOT_FIT:
            return None
        result = drive(
            target.engine,
            self._plan(rate),
            slo=self.slo,
            drain_timeout_s=self.load.drain_timeout_s,
            weigh_evidence=False,
            # Latencies and throughputs are those of whole runs.
            stop_when_settled=not self.objectives,
        )
        self.steps += len(result.iterations)
        good = sum(bool(request.good) for request in in_window(result.requests))
        whole = result.stopped_early is None
        # A play that was stopped has missed, which need not be judged.
        verdict = self.slo.judge(result.requests) if whole or self.objectives else None
        held = whole and verdict is not None and verdict.meets
        seconds = result.window.duration_s
        goodput = good / seconds if seconds else 0.0
        played = Played(rate if held else None, goodput, held, target.executor.step_times.extrapolated)
        if verdict is None or not self.objectives:
            return played
        summary = summarize(result.requests, (), result.window, self.slo)
        return replace(
            played,
            values=tuple(objective.at_offered_rate(summary, rate) for objective in self.objectives),
            excess=log_excess(verdict.to_dict()["bounds"]),
        )

    def _plan(self, rate: float | None) -> WorkloadPlan:
        if rate not in self._plans:
            self._plans[rate] = make_plan(
                self.like.spec,
                rate=rate,
                seed=self.load.seed,
                vocab_size=self.like.source.arch.vocab_size,
                warmup_s=self.load.warmup_s,
                window_s=self._window_s(rate),
            )
        return self._plans[rate]

    def _window_s(self, rate: float | None) -> float:
        if rate is None or self.most_requests is None:
            return self.load.window_s
        return min(self.load.window_s, self.most_requests / rate)


def _rate_of(rung: int) -> float:
    return readable(RUNG**rung)
