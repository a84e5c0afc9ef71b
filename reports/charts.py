"""The data behind each chart, computed from a run's tables or a study's trials, small enough to draw.

What a chart looks like is decided in `reports.plots`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reports.format import is_known, setting, text
from workloads.metrics import NS_PER_MS, SAMPLES, in_window
from workloads.records import RequestRecord

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

# A chart is some 600 pixels wide: more points than this only hide each other.
MAX_POINTS = 600
# The ratio of two sums is noise over single steps, which are often all decode; it gets wider bins.
MAX_RATIO_POINTS = 60
MAX_CURVE_POINTS = 400


@dataclass(frozen=True, slots=True, eq=False)
class TraceChart:
    """A run's steps over time, in bins of `steps_per_point` consecutive steps.

    Attributes:
        label: whose run it is.
        t_s: start of each bin's first step, seconds since the first step.
        prefill_tokens, decode_tokens: means per step of the bin.
        ratio_t_s, ratio: prefill tokens per decode token, sum over sum in bins of `steps_per_ratio_point` steps;
            NaN where a bin decoded nothing.
        kv_mean_percent, kv_max_percent: share of the KV blocks in use, over the bin.
        running, waiting: means over the bin.
        recompute_preemptions, swap_preemptions: counted since the first step, at the bin's end.
        window_s: the measured part, None when unknown.
    """

    label: str
    steps_per_point: int
    t_s: Floats
    prefill_tokens: Floats
    decode_tokens: Floats
    steps_per_ratio_point: int
    ratio_t_s: Floats
    ratio: Floats
    kv_mean_percent: Floats
    kv_max_percent: Floats
    running: Floats
    waiting: Floats
    recompute_preemptions: Floats
    swap_preemptions: Floats
    window_s: tuple[float, float] | None

    @property
    def note(self) -> str:
        """How the steps were put together, for the caption."""
        if self.steps_per_point == 1:
            points = "Each point is one step"
        else:
            points = (
                f"Each point covers {self.steps_per_point} steps: tokens, running and waiting are means per step, "
                "KV use is mean and maximum, preemptions are counted up to there"
            )
        return f"{points}; the ratio is that of the sums over {self.steps_per_ratio_point} steps."


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


Chart = TraceChart | LatencyChart | TrialChart | ImportanceChart


def trace_chart(label: str, iterations: "pd.DataFrame", window: Mapping[str, Any] | None) -> TraceChart | None:
    """The chart of a run's `iterations.parquet`; None when there was no step."""
    n = len(iterations)
    if n == 0:
        return None
    column = {name: iterations[name].to_numpy(dtype=np.float64) for name in iterations.columns}
    origin = column["t_start"][0]
    t_s = (column["t_start"] - origin) / 1e9
    per_point, per_ratio = -(-n // MAX_POINTS), -(-n // MAX_RATIO_POINTS)
    starts, ratio_starts = np.arange(0, n, per_point), np.arange(0, n, per_ratio)
    sizes = np.diff(np.append(starts, n))

    def mean(values: Floats) -> Floats:
        return np.add.reduceat(values, starts) / sizes

    def counted(values: Floats) -> Floats:
        return np.cumsum(np.add.reduceat(values, starts))

    blocks = column["kv_blocks_total"]
    kv_percent = 100 * np.divide(column["kv_blocks_used"], blocks, out=np.zeros(n), where=blocks > 0)
    prefill = np.add.reduceat(column["prefill_tokens"], ratio_starts)
    decode = np.add.reduceat(column["decode_tokens"], ratio_starts)
    return TraceChart(
        label=label,
        steps_per_point=per_point,
        t_s=t_s[starts],
        prefill_tokens=mean(column["prefill_tokens"]),
        decode_tokens=mean(column["decode_tokens"]),
        steps_per_ratio_point=per_ratio,
        ratio_t_s=t_s[ratio_starts],
        ratio=np.divide(prefill, decode, out=np.full(len(prefill), np.nan), where=decode > 0),
        kv_mean_percent=mean(kv_percent),
        kv_max_percent=np.maximum.reduceat(kv_percent, starts),
        running=mean(column["running"]),
        waiting=mean(column["waiting"]),
        recompute_preemptions=counted(column["preemptions_recompute"]),
        swap_preemptions=counted(column["preemptions_swap"]),
        window_s=None if window is None else _seconds_since(origin, window),
    )


def _seconds_since(origin_ns: float, window: Mapping[str, Any]) -> tuple[float, float] | None:
    start_ns, end_ns = window.get("start_ns"), window.get("end_ns")
    if start_ns is None or end_ns is None:
        return None
    return (start_ns - origin_ns) / 1e9, (end_ns - origin_ns) / 1e9


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
    for trial in sorted(trials, key=lambda t: t["number"]):
        if is_known(goodput := trial.get("goodput")):
            feasible = trial["state"] == "complete"
            hover = ", ".join(f"{text(name)}={setting(value)}" for name, value in trial["settings"].items())
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
