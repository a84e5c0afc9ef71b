"""What the twin predicts beside what was measured, run by run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.build import say_nothing
from engine.errors import UserError
from engine.executor.learnt_device import LearntExecutor
from tuner.settings import Settings
from tuner.targets.bundled import BundledTarget, Load, TargetOptions
from workloads.slo import parse_slo
from workloads.spec import spec_from_dict

if TYPE_CHECKING:
    from workloads.records import RunRecord

METRICS = {
    "goodput": "request_goodput",
    "output tokens/s": "output_throughput",
    "p95 TTFT": "p95_ttft_ms",
    "p95 TPOT": "p95_tpot_ms",
}
"""Name to the key of `summary`."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """One run and its replay.

    Attributes:
        label: the run's folder.
        measured, predicted: the metrics by name; None where there is none.
        extrapolated: share of the replay's steps outside of what the step times were learnt from.
    """

    label: str
    measured: dict[str, float | None]
    predicted: dict[str, float | None]
    extrapolated: float

    def error(self, metric: str) -> float | None:
        """Predicted over measured less 1; None where one of them is missing or 0."""
        measured, predicted = self.measured[metric], self.predicted[metric]
        return predicted / measured - 1 if measured and predicted else None


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How far predictions and measurements agree on one metric.

    Attributes:
        runs: how many could be compared.
        median_error: of the sizes of the errors.
        bias: median of the errors.
        rank_correlation: Spearman's; None for fewer than three runs, or equal values.
    """

    runs: int
    median_error: float | None
    bias: float | None
    rank_correlation: float | None


def replay(device: str, runs: Sequence["RunRecord"], *, say: Callable[[str], None] = say_nothing) -> list[Predicted]:
    """Play the load of each run on a learnt device, under the same settings and seed.

    Args:
        device: `sim:FILE.json`.
        runs: of one model and one workload each; runs that ended early are left out, as their numbers are of a part.

    Raises:
        UserError: no run is left, or one that the device says nothing of.
    """
    whole = [run for run in runs if run.meta["stopped_early"] is None]
    if not whole:
        raise UserError("there is no run that went to its end: nothing to compare a prediction with")
    targets: dict[str, BundledTarget] = {}
    rows = []
    for run in whole:
        meta = run.meta
        settings = Settings.from_dict(meta["settings"])
        replicas = {name: meta["device"][name] for name in ("data_parallel_size", "router") if name in meta["device"]}
        key = repr((meta["workload"], meta["model"]["max_model_len"], meta["device"]["memory_bytes"], replicas))
        if key not in targets:
            options = TargetOptions(
                model=meta["model"]["name"],
                device=device,
                max_model_len=meta["model"]["max_model_len"],
                device_memory_bytes=meta["device"]["memory_bytes"],
                **replicas,
            )
            targets[key] = BundledTarget(options, spec_from_dict(meta["workload"]), settings)
        rows.append(_replay(targets[key], run.path.name, settings, meta))
        say(f"{run.path.name} replayed")
    return rows


def _replay(target: BundledTarget, label: str, settings: Settings, meta: dict[str, Any]) -> Predicted:
    load = meta["load"]
    slo = None if meta["slo"] is None else parse_slo([meta["slo"]])
    played = target.measure(
        settings,
        Load(meta["rate"], meta["seed"], load["warmup_s"], load["window_s"], load["drain_timeout_s"]),
        slo,
        stop_when_settled=False,
    )
    assert isinstance(target.executor, LearntExecutor)
    return Predicted(
        label,
        {name: meta["summary"].get(key) for name, key in METRICS.items()},
        {name: played.meta["summary"].get(key) for name, key in METRICS.items()},
        target.executor.step_times.extrapolated,
    )


def accuracy(rows: Sequence[Predicted], metric: str) -> Accuracy:
    """How far the rows agree on one of `METRICS`."""
    import numpy as np
    from scipy.stats import spearmanr

    both = [row for row in rows if row.error(metric) is not None]
    if not both:
        return Accuracy(0, None, None, None)
    errors = np.array([row.error(metric) for row in both], dtype=np.float64)
    measured = [row.measured[metric] for row in both]
    predicted = [row.predicted[metric] for row in both]
    ranked = len(both) >= 3 and len(set(measured)) > 1 and len(set(predicted)) > 1
    rank = float(spearmanr(measured, predicted).statistic) if ranked else None
    return Accuracy(len(both), float(np.median(np.abs(errors))), float(np.median(errors)), rank)
