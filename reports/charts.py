"""The data behind the charts of requests and of trials, small enough to draw.

Those of a run over time stand in `reports.trace_chart` and `reports.wait_chart`. What a chart looks like is decided in
`reports.plots`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reports.format import is_known, text
from reports.front_chart import FrontChart
from reports.settings import assignment, short_names
from reports.trace_chart import Floats, TraceChart
from reports.wait_chart import WaitChart
from workloads.metrics import NS_PER_MS, SAMPLES, in_window
from workloads.records import RequestRecord

MAX_CURVE_POINTS = 400


@dataclass(frozen=True, slots=True, eq=False)
class LatencyCurve:
    """Share of requests at or below each latency. Ends below 1 when some never got that far."""

    label: str
    latency_ms: Floats
    share: Floats


@dataclass(frozen=True, slots=True)
class LatencyBound:
    """An SLO bound to mark: `required_share` is None where the bound is not on a quantile."""

    text: str
    bound_ms: float
    required_share: float | None


@dataclass(frozen=True, slots=True)
class LatencyChart:
    """One latency's distribution, one curve per run."""

    metric: str
    curves: tuple[LatencyCurve, ...]
    bounds: tuple[LatencyBound, ...]


@dataclass(frozen=True, slots=True)
class TrialPoint:
    """One trial that gave a goodput (requests/s)."""

    number: int
    goodput: float
    feasible: bool
    hover: str


@dataclass(frozen=True, slots=True)
class TrialChart:
    """Goodput by trial.

    Attributes:
        best_so_far: (trial, goodput) after each trial that met the SLO.
        baseline: goodput of the baseline, None when it has none.
    """

    points: tuple[TrialPoint, ...]
    best_so_far: tuple[tuple[int, float], ...]
    baseline: float | None


@dataclass(frozen=True, slots=True)
class ImportanceChart:
    """Share of the variance of goodput that each parameter explains, largest first."""

    parameters: tuple[str, ...]
    shares: tuple[float, ...]


Chart = TraceChart | WaitChart | LatencyChart | TrialChart | ImportanceChart | FrontChart


def latency_charts(
    runs: Sequence[tuple[str, Sequence[RequestRecord]]], bounds: Sequence[Mapping[str, Any]]
) -> tuple[LatencyChart, ...]:
    """TTFT, TPOT and E2E of the requests scheduled in the measured window.

    Args:
        runs: label and requests of each run.
        bounds: the entries of `verdict.bounds`.
    """
    charts = []
    for metric in ("ttft", "tpot", "e2e"):
        curves = [curve for label, requests in runs if (curve := _latency_curve(label, metric, requests)) is not None]
        marks = tuple(
            LatencyBound(text(b.get("text")), b["bound_ms"], b.get("required_share"))
            for b in bounds
            if b.get("metric") == metric and is_known(b.get("bound_ms"))
        )
        if curves:
            charts.append(LatencyChart(metric.upper(), tuple(curves), marks))
    return tuple(charts)


def _latency_curve(label: str, metric: str, requests: Sequence[RequestRecord]) -> LatencyCurve | None:
    samples = [SAMPLES[metric](request) for request in in_window(requests)]
    known = np.sort(np.array([value for sample in samples for value in sample.values], dtype=np.float64)) / NS_PER_MS
    if len(known) == 0:
        return None
    # What never came is a miss and keeps the curve below 100%.
    share = np.arange(1, len(known) + 1) / (len(known) + sum(sample.missing for sample in samples))
    if len(known) > MAX_CURVE_POINTS:
        keep = np.unique(np.linspace(0, len(known) - 1, MAX_CURVE_POINTS).round().astype(int))
        known, share = known[keep], share[keep]
    return LatencyCurve(label, known, share)


def trial_chart(trials: Sequence[Mapping[str, Any]]) -> TrialChart | None:
    """Goodput by trial; None when no trial gave one. Trials without a goodput have no point."""
    points: list[TrialPoint] = []
    best_so_far: list[tuple[int, float]] = []
    best = 0.0
    shown = short_names([trial["settings"] for trial in trials])
    for trial in sorted(trials, key=lambda t: t["number"]):
        if is_known(goodput := trial.get("goodput")):
            feasible = trial["state"] == "complete"
            hover = ", ".join(assignment(name, trial["settings"].get(name)) for name in shown)
            points.append(TrialPoint(trial["number"], goodput, feasible, hover))
            if feasible:
                best = max(best, goodput)
                best_so_far.append((trial["number"], best))
    baseline = next((t.get("goodput") for t in trials if t.get("kind") == "baseline"), None)
    return TrialChart(tuple(points), tuple(best_so_far), baseline if is_known(baseline) else None) if points else None


def importance_chart(importance: Mapping[str, float]) -> ImportanceChart | None:
    """Parameter importance; None when the study had too few trials to tell."""
    known = sorted(((share, name) for name, share in importance.items() if is_known(share)), reverse=True)
    if not known:
        return None
    return ImportanceChart(tuple(name for _, name in known), tuple(share for share, _ in known))
