"""The numbers by which sides are compared: how each is read, what it is called, and which way is better."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from engine.errors import UserError
from reports.diff.side import Recorded
from reports.format import count, is_known, milliseconds, percent, request_rate, token_rate
from workloads.bounds import METRICS, Bound
from workloads.metrics import SUMMARY_PERCENTILES
from workloads.slo import parse_slo

Read = Callable[[Recorded], float | None]

# `vllm bench serve` writes `e2el` in its result keys.
_SUMMARY_NAMES = {"e2e": "e2el"}
GOODPUT = "goodput"
_STATISTICS = ("mean", *(f"p{q}" for q in SUMMARY_PERCENTILES), "max")
_LATENCY = re.compile(r"(?P<statistic>mean|max|p\d+(?:\.\d+)?)_(?P<metric>[a-z0-9]+)")


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a run.

    Attributes:
        name: as `--fail-on` takes it.
        title: for people.
        unit: `ms`, `requests/s`, `tokens/s`, `share` or empty for a count.
        smaller_is_better: for latencies; None for what is neither, such as how often something happened.
        read: takes it from a run; None where it was not measured.
        write: puts it as text.
        latency: statistic and metric, such as (`p95`, `ttft`), of what is computed over requests; else None.
    """

    name: str
    title: str
    unit: str
    smaller_is_better: bool | None
    read: Read
    write: Callable[[float | None], str]
    latency: tuple[str, str] | None = None


def metrics_of(slo: str | None, named: Iterable[str] = ()) -> tuple[list[Metric], list[Metric]]:
    """The metrics that are judged unless there are rules, and those that are only shown.

    Args:
        slo: its bounds are judged; text as in `run.json`, None for none.
        named: metrics that rules name; those that no list holds yet are put in front of the shown ones.

    Raises:
        UserError: there is no metric of such a name.
    """
    bounds = () if slo is None else parse_slo([slo]).bounds
    judged = [_of_bound(bound) for bound in bounds]
    judged += [_COUNTED[GOODPUT]] if bounds else []
    judged += [_latency("mean", "ttft"), _latency("mean", "tpot"), _COUNTED["output_throughput"]]
    judged = list({metric.name: metric for metric in reversed(judged)}.values())[::-1]
    known = {metric.name for metric in judged}
    shown = [metric_named(name) for name in dict.fromkeys(named) if name not in known]
    listed = [
        _latency(statistic, metric) for metric in ("ttft", "tpot", "e2e", "queue") for statistic in ("p50", "p99")
    ]
    listed += [metric for name, metric in _COUNTED.items() if name not in (GOODPUT, "output_throughput")]
    known |= {metric.name for metric in shown}
    return judged, [*shown, *(metric for metric in listed if metric.name not in known)]


def metric_named(name: str) -> Metric:
    """The metric of that name.

    Raises:
        UserError: there is none.
    """
    if name in _COUNTED:
        return _COUNTED[name]
    match = _LATENCY.fullmatch(name)
    if match and match["statistic"] in _STATISTICS and match["metric"] in METRICS:
        return _latency(match["statistic"], match["metric"])
    known = [*(f"{s}_{m}" for m in METRICS for s in _STATISTICS), *_COUNTED]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"choose {', '.join(_COUNTED)}, or {_LATENCY_NAMES}"
    raise UserError(f"unknown metric {name!r}: {hint}")


_LATENCY_NAMES = f"{', '.join(_STATISTICS)} of {', '.join(METRICS)}, such as p95_ttft"


def _latency(statistic: str, metric: str) -> Metric:
    key = f"{statistic}_{_SUMMARY_NAMES.get(metric, metric)}_ms"
    return Metric(
        f"{statistic}_{metric}", f"{statistic} {_title(metric)}", "ms", True, _summary(key), milliseconds,
        (statistic, metric),
    )  # fmt: skip


def _of_bound(bound: Bound) -> Metric:
    """The statistic that a bound is about, as its verdict observed it: requests that never answered count as slow."""

    usual = _latency(bound.statistic, bound.metric)

    def read(run: Recorded) -> float | None:
        judged = (run.meta.get("verdict") or {}).get("bounds") or ()
        found = [b for b in judged if (b["statistic"], b["metric"]) == (bound.statistic, bound.metric)]
        # A run under another SLO has not judged it.
        return _known(found[0].get("observed_ms")) if found else usual.read(run)

    return replace(usual, read=read)


def _title(metric: str) -> str:
    return metric if metric == "queue" else metric.upper()


def _known(value: object) -> float | None:
    return float(value) if is_known(value) else None


def _summary(key: str) -> Read:
    return partial(_from_summary, key)


def _from_summary(key: str, run: Recorded) -> float | None:
    return _known(run.meta["summary"].get(key))


def _share_of_prefill(run: Recorded) -> float | None:
    summary: Mapping[str, Any] = run.meta["summary"]
    prefill, decode = _known(summary.get("prefill_tokens")), _known(summary.get("decode_tokens"))
    return None if prefill is None or decode is None or not prefill + decode else prefill / (prefill + decode)


_COUNTED: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(GOODPUT, "goodput", "requests/s", False, _summary("request_goodput"), request_rate),
        Metric("output_throughput", "output tokens", "tokens/s", False, _summary("output_throughput"), token_rate),
        Metric("request_throughput", "requests", "requests/s", False, _summary("request_throughput"), request_rate),
        Metric("preemptions", "preemptions", "", True, _summary("preemptions"), count),
        Metric("recomputed_tokens", "recomputed tokens", "", True, _summary("recomputed_tokens"), count),
        Metric("mean_kv_utilization", "mean KV use", "share", None, _summary("mean_kv_utilization"), percent),
        Metric("prefill_share", "prefill share of tokens", "share", None, _share_of_prefill, percent),
        Metric("iterations", "iterations", "", None, _summary("iterations"), count),
    )
}
