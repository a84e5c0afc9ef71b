"""The product's own study on a made-up device: a target that pays simulated seconds, and a store in memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.engine import Engine
from engine.trace import IterationRecord
from scripts.search_proof.pairs import Pair
from scripts.search_proof.truth import TruthExecutor, TruthTimes
from tuner.progress import ProgressDisplay
from tuner.settings import Settings
from tuner.store import Run, StudyStore
from tuner.targets.bundled import BundledTarget, Load, Measured, TargetOptions
from workloads.records import SCHEMA_VERSION, RequestRecord, RunRecord
from workloads.slo import Slo

if TYPE_CHECKING:
    import optuna
    import pandas as pd

# Only says that ranges and defaults for a GPU apply; the executor is the truth's.
_LIKE = "sim:l4"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run took.

    Attributes:
        seconds: that it ran, the start of the engine left aside.
        started: the engine was started for it, since its settings were others than the run's before.
        failed: it broke off, or the engine did not start.
    """

    seconds: float
    started: bool
    failed: bool = False


class WorldTarget(BundledTarget):
    """A made-up device as the thing to be tuned. It looks like a real one: nothing may be quicker because it is not.

    Args:
        pair: device and workload.
        seed: of the device's noise.
        start_s: that a start of the engine takes.
        started_at_s: time on the device before the first run.

    Attributes:
        spent_s: of the device's time so far.
        costs: of every run, in order; a burst counts as one.
    """

    def __init__(self, pair: Pair, seed: int, start_s: float = 0.0, started_at_s: float = 0.0) -> None:
        self.pair = pair
        self.spent_s = 0.0
        self.costs: list[Cost] = []
        self._start_s = start_s
        self._running: Settings | None = None
        self._times = TruthTimes(pair.device, seed, lambda: started_at_s + self.spent_s)
        super().__init__(TargetOptions(pair.model, _LIKE), pair.spec, pair.default)

    @property
    def simulated(self) -> bool:
        return False

    def _load(self, settings: Settings) -> None:
        self.executor = executor = self._make_executor()
        self.engine = Engine(executor, settings.scheduler(), settings.cache())

    def _make_executor(self) -> TruthExecutor:
        return TruthExecutor(self.pair.device, self.source.arch, self._times, self.spec.max_request_tokens)

    def measure(self, settings: Settings, load: Load, slo: Slo | None, **options: Any) -> Measured:
        """See `BundledTarget.measure`."""
        failed = True
        try:
            measured = super().measure(settings, load, slo, **options)
            failed = measured.error is not None
            return measured
        finally:
            self._pay(settings, self.engine.clock.now_ns() / 1e9, failed=failed)

    def burst(self, settings: Settings, num_requests: int, seed: int) -> tuple[float, float]:
        """See `BundledTarget.burst`."""
        begin_ns = self.engine.clock.now_ns()
        try:
            return super().burst(settings, num_requests, seed)
        finally:
            self._pay(settings, (self.engine.clock.now_ns() - begin_ns) / 1e9, failed=False)

    def restart(self, seed: int) -> None:
        """Begin a run at time 0, as `measure` does."""
        assert isinstance(self.executor, TruthExecutor)
        self.executor.restart(seed)

    def _pay(self, settings: Settings, seconds: float, *, failed: bool) -> None:
        started = settings != self._running
        self.costs.append(Cost(seconds, started, failed))
        self.spent_s += seconds + (self._start_s if started else 0.0)
        # What broke off has to be started again, whatever comes next.
        self._running = None if failed else settings


@dataclass(frozen=True)
class HeldRun(RunRecord):
    """A run that was never written."""

    held_requests: Sequence[RequestRecord]
    held_iterations: Sequence[IterationRecord]

    @cached_property
    def iterations(self) -> "pd.DataFrame":
        import pandas as pd

        names = IterationRecord.__dataclass_fields__
        return pd.DataFrame({name: [getattr(step, name) for step in self.held_iterations] for name in names})

    def request_records(self) -> list[RequestRecord]:
        return list(self.held_requests)

    def iteration_records(self) -> list[IterationRecord]:
        return list(self.held_iterations)


class MemoryStore(StudyStore):
    """A study that leaves no folder, so that thousands of them cost little.

    Args:
        scratch: a folder for what has to be a file (the learnt device).
        record: the content of `study.json`.
        on_save: is given the record whenever it would be written.
    """

    def __init__(self, scratch: Path, record: Mapping[str, Any], on_save: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__(scratch, {"schema_version": SCHEMA_VERSION, "kind": "study"} | dict(record))
        self._held: dict[str, HeldRun] = {}
        self._on_save = on_save

    def save(self) -> None:
        self._on_save(self.record)

    def save_best(self, best: Mapping[str, Any]) -> None:
        """There is nothing to write to."""

    def add_run(self, label: str, measured: Measured) -> Run:
        run = Run(f"runs/{len(self._runs) + 1:03d}-{label}", measured.meta)
        self._held[run.path] = HeldRun(self.path / run.path, measured.meta, measured.requests, measured.iterations)
        self._runs.append(run)
        return run

    def load(self, run: Run) -> RunRecord:
        return self._held[run.path]

    def optuna_study(self, directions: Sequence[str] = ("maximize",)) -> "optuna.Study":
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return optuna.create_study(directions=[*directions])  # type: ignore[list-item]


class Silence(ProgressDisplay):
    """Shows nothing."""

    def __init__(self) -> None:
        from rich.console import Console

        super().__init__(Console(quiet=True))

    def say(self, text: str) -> None:
        """Nobody reads the lines of thousands of studies."""
