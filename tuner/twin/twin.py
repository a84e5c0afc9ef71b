"""The engine's twin in a study: how a setting would do, played in a fraction of a second.

What it says chooses what to measure. It is never reported as a measurement.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.build import SIMULATED_PREFIX
from engine.executor.simulated import SimulatedExecutor
from tuner.rate_search import readable
from tuner.settings import Settings
from tuner.targets.bundled import DOES_NOT_FIT, BundledTarget, Load
from workloads.driver import drive
from workloads.metrics import in_window
from workloads.plan import WorkloadPlan, make_plan
from workloads.slo import Slo

# Rates are tried on a ladder, so that all settings are played under the same few plans of traffic.
RUNG = 1.06
LONGEST_STRIDE = 32


@dataclass(frozen=True, slots=True)
class Played:
    """What the twin says of a setting.

    Attributes:
        rate: the highest of the ladder that it holds within the SLO, requests per second; None for none that was tried,
            and for a closed loop.
        goodput: good requests per second there, or at the lowest rate tried.
        held: the SLO held there.
    """

    rate: float | None
    goodput: float
    held: bool


@dataclass(slots=True)
class Twin:
    """Plays a study's workload on a learnt device.

    Attributes:
        file: of the learnt device.
        like: the target that it is the twin of.
        slo: what the requests must meet.
        load: lengths and seed of the runs; its rate is left aside.
        settings: some that fit, to begin with.

    Raises:
        KVCacheTooSmall: by what was learnt of the memory, not even those fit.
    """

    file: Path
    like: BundledTarget
    slo: Slo
    load: Load
    settings: Settings
    _target: BundledTarget = field(init=False)
    _plans: dict[float | None, WorkloadPlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        budget = self.like.engine.kv_budget
        options = replace(
            self.like.options,
            device=f"{SIMULATED_PREFIX}{self.file}",
            max_model_len=self.like.executor.max_model_len,
            device_memory_bytes=budget.total if budget else None,
        )
        self._target = BundledTarget(options, self.like.spec, self.settings)

    def play(self, settings: Settings, rate: float | None) -> Played | None:
        """One run; None when the settings do not fit."""
        target = self._target
        assert isinstance(target.executor, SimulatedExecutor)
        target.executor.restart(self.load.seed)
        try:
            target.prepare(settings)
        except DOES_NOT_FIT:
            return None
        result = drive(
            target.engine,
            self._plan(rate),
            slo=self.slo,
            drain_timeout_s=self.load.drain_timeout_s,
            stop_when_settled=True,
        )
        good = sum(bool(request.good) for request in in_window(result.requests))
        held = result.stopped_early is None and self.slo.judge(result.requests).meets
        seconds = result.window.duration_s
        return Played(rate if held else None, good / seconds if seconds else 0.0, held)

    def climb(self, settings: Settings, start: float | None) -> Played | None:
        """The highest rate of the ladder through `start` that a setting holds; None when it does not fit.

        In strides that double until there is one rung that is held and one that is not, then halving between them.
        """
        first = self.play(settings, start)
        if first is None or start is None:
            return first
        held, missed = (0, None) if first.held else (None, 0)
        best, stride = first, 1
        while (held is None or missed is None) and stride <= LONGEST_STRIDE:
            rung = held + stride if held is not None else missed - stride  # type: ignore[operator]
            stride *= 2
            played = self._play_rung(settings, start, rung)
            held, missed = (rung, missed) if played.held else (held, rung)
            best = played if played.held or held is None else best
        while held is not None and missed is not None and missed - held > 1:
            rung = (held + missed) // 2
            played = self._play_rung(settings, start, rung)
            held, missed = (rung, missed) if played.held else (held, rung)
            best = played if played.held else best
        return best

    def _play_rung(self, settings: Settings, start: float, rung: int) -> Played:
        played = self.play(settings, readable(start * RUNG**rung))
        assert played is not None
        return played

    def _plan(self, rate: float | None) -> WorkloadPlan:
        if rate not in self._plans:
            self._plans[rate] = make_plan(
                self.like.spec,
                rate=rate,
                seed=self.load.seed,
                vocab_size=self.like.source.arch.vocab_size,
                warmup_s=self.load.warmup_s,
                window_s=self.load.window_s,
            )
        return self._plans[rate]
