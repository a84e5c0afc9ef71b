"""Measures one setting at one rate for a study: finds the run when it was made before, makes and stores it when not."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner.budget import Budget
from tuner.interrupt import deferred_interrupts
from tuner.progress import ProgressDisplay
from tuner.settings import Settings
from tuner.store import Run, StudyStore
from tuner.targets.bundled import BundledTarget, Load
from workloads.slo import Slo

MIN_WINDOW_REQUESTS = 20
# Until runs have told how long the last requests take.
FIRST_DRAIN_SHARE = 0.2
FIRST_SIMULATED_RUN_S = 1.0


@dataclass(frozen=True, slots=True)
class RunLengths:
    """Lengths of a run's parts in seconds; at low rates warm-up and window are longer, for enough requests."""

    warmup_s: float
    window_s: float
    drain_timeout_s: float

    def load(self, rate: float | None, seed: int) -> Load:
        """The load of a run at `rate` requests per second; None for a closed loop."""
        window_s = self.window_s if rate is None else max(self.window_s, MIN_WINDOW_REQUESTS / rate)
        warmup_s = self.warmup_s * window_s / self.window_s
        return Load(rate, seed, warmup_s, window_s, self.drain_timeout_s)

    def shortest_baseline_s(self, rate: float | None) -> float:
        """The least that a baseline takes: one run at a given rate, else a burst and two runs to bracket one."""
        load = self.load(rate, 0)
        return (load.warmup_s + load.window_s) * (1 if rate is not None else 3)


@dataclass(slots=True)
class Runner:
    """Makes a study's runs.

    Attributes:
        lengths: of every run.
        wall_s: wall time of the runs that this process made and that went to their end; of all that were simulated.
    """

    target: BundledTarget
    store: StudyStore
    budget: Budget
    display: ProgressDisplay
    slo: Slo
    lengths: RunLengths
    wall_s: list[float] = field(default_factory=list)

    def run(
        self,
        label: str,
        settings: Settings,
        rate: float | None,
        seed: int,
        *,
        stop_when_settled: bool = True,
        stop_when_held: bool = False,
        race: Sequence[int] | None = None,
    ) -> Run:
        """Measure once, or find the same run made before.

        Args:
            label: for people, in the run's name too.
            stop_when_settled, stop_when_held, race: what may end the run early, see `workloads.driver.drive`.

        Raises:
            KVCacheTooSmall, SwapSpaceTooSmall, OutOfDeviceMemory: the settings do not fit; nothing was measured.
            KeyboardInterrupt: after what was measured until then was stored; it will be measured anew.
        """
        load = self.lengths.load(rate, seed)
        known = self.store.find_run(settings, load)
        if known is not None:
            return known
        started_s = self.budget.spent_s
        update = self.display.run_started(f"{label}{at(rate)}")
        with deferred_interrupts() as interrupted:
            try:
                measured = self.target.measure(
                    settings,
                    load,
                    self.slo,
                    stop_when_settled=stop_when_settled,
                    stop_when_held=stop_when_held,
                    race=race,
                    on_progress=update,
                    should_stop=interrupted,
                )
            finally:
                self.display.run_ended()
            run = self.store.add_run(label if rate is None else f"{label}-{rate:.3g}rps", measured)
            if interrupted():
                raise KeyboardInterrupt
        if measured.meta["stopped_early"] is None or self.target.simulated:
            self.wall_s.append(self.budget.spent_s - started_s)
        self.display.say(f"{label}{at(rate)}: {describe(run)}")
        return run

    def knows(self, settings: Settings, rate: float | None, seed: int) -> bool:
        """Whether this run was made before, and takes no time."""
        return self.store.find_run(settings, self.lengths.load(rate, seed)) is not None

    def estimate_s(self, rate: float | None) -> float:
        """Wall time of a run that goes to its end."""
        if self.target.simulated:
            return max(self.wall_s, default=FIRST_SIMULATED_RUN_S)
        load = self.lengths.load(rate, 0)
        planned_s = load.warmup_s + load.window_s
        drains_s = [s - planned_s for s in self.wall_s if s > planned_s]
        return planned_s + (sum(drains_s) / len(drains_s) if drains_s else FIRST_DRAIN_SHARE * planned_s)

    def has_time_for(self, rate: float | None, *, runs: int = 1, keep_s: float = 0.0) -> bool:
        """Whether the budget allows so many runs, with `keep_s` left after them."""
        return self.budget.allows(runs * self.estimate_s(rate) + keep_s)


def at(rate: float | None) -> str:
    """The rate for people; empty for a closed loop."""
    return "" if rate is None else f" at {rate:.3g} requests/s"


def _said_of(run: Run) -> str:
    if run.held:
        return "held"
    if run.is_behind:
        return "no better"
    return "missed the SLO" if run.constraint > 0 else "not valid"


def describe(run: Run) -> str:
    """A run in one line."""
    if run.failure:
        return f"failed: {run.failure}"
    p95_ms = run.meta["summary"]["p95_ttft_ms"]
    parts = [
        _said_of(run),
        f"{run.goodput:.3g} good requests/s",
        "no request completed" if p95_ms is None else f"p95 TTFT {p95_ms:.0f} ms",
    ]
    if run.meta["stopped_early"]:
        parts.append(run.meta["stopped_early"])
    if not run.is_valid:
        parts.append(run.distrust)
    return ", ".join(parts)
