"""Latency of one request, and the flat summary of a window.

TTFT, E2E and queue time count from `t_sched`, so that a late send is the request's loss and not the measurement's
(no coordinated omission). What was not measured is None, never 0.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.trace import IterationRecord
from workloads.records import TURNED_AWAY, RequestRecord
from workloads.waits import Waits, wait_times

if TYPE_CHECKING:
    from workloads.slo import Slo

NS_PER_MS = 1e6
NS_PER_S = 1e9

_CLASS_METRICS = ("ttft", "tpot", "e2e", "queue")
SUMMARY_PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Window:
    """The measured part of the schedule, `[start_ns, end_ns)` of the run's clock."""

    start_ns: int
    end_ns: int

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return (self.end_ns - self.start_ns) / NS_PER_S


@dataclass(frozen=True, slots=True)
class Sample:
    """What one request contributes to a metric.

    Attributes:
        values: measured values in nanoseconds.
        missing: values that were due and never came; a bound counts them as misses.
    """

    values: tuple[float, ...]
    missing: int = 0


def ttft_ns(record: RequestRecord) -> int | None:
    """Time to the first token, from the scheduled arrival."""
    return None if record.t_first is None else record.t_first - record.t_sched


def tpot_ns(record: RequestRecord) -> float | None:
    """Time per output token after the first chunk; None when all tokens came in one chunk."""
    later_tokens = record.output_tokens - record.first_chunk_tokens
    if record.t_first is None or record.t_last is None or later_tokens < 1:
        return None
    return (record.t_last - record.t_first) / later_tokens


def itl_ns(record: RequestRecord) -> tuple[float, ...]:
    """Inter-token latencies: for each chunk after the first, the gap before it per token in it."""
    times, tokens = record.chunk_times, record.chunk_tokens
    return tuple((times[i] - times[i - 1]) / tokens[i] for i in range(1, len(times)))


def e2e_ns(record: RequestRecord) -> int | None:
    """Time from the scheduled arrival to the end of the request."""
    return None if record.t_end is None else record.t_end - record.t_sched


def queue_ns(record: RequestRecord) -> int | None:
    """Time from the scheduled arrival to the first admission."""
    return None if record.t_admit is None else record.t_admit - record.t_sched


def _known_at_the_end(metric: Callable[[RequestRecord], float | None]) -> Callable[[RequestRecord], Sample]:
    return lambda record: _sample_of(metric(record) if record.status == "ok" else None)


def _known_before_the_end(metric: Callable[[RequestRecord], float | None]) -> Callable[[RequestRecord], Sample]:
    return lambda record: _sample_of(metric(record) if record.status in ("ok", "unfinished") else None)


def _sample_of(value: float | None) -> Sample:
    return Sample((), missing=1) if value is None else Sample((value,))


def _was_being_answered(record: RequestRecord) -> bool:
    """The run was stopped while the request's tokens came."""
    return record.status == "unfinished" and record.t_first is not None


def _tpot_sample(record: RequestRecord) -> Sample:
    if _was_being_answered(record):
        return Sample(())
    if record.status != "ok":
        return Sample((), missing=1)
    value = tpot_ns(record)
    return Sample(()) if value is None else Sample((value,))


def _itl_sample(record: RequestRecord) -> Sample:
    if record.status == "ok" or _was_being_answered(record):
        return Sample(itl_ns(record))
    return Sample(itl_ns(record), missing=max(1, record.max_tokens - record.output_tokens))


SAMPLES: dict[str, Callable[[RequestRecord], Sample]] = {
    "ttft": _known_before_the_end(ttft_ns),
    "tpot": _tpot_sample,
    "itl": _itl_sample,
    "e2e": _known_at_the_end(e2e_ns),
    "queue": _known_before_the_end(queue_ns),
}
"""Metric name to what a request contributes. A request that did not end well is missing in every metric; one that
ended well with all its tokens in one chunk has no TPOT and no ITL, and is no miss for them.

Of a request whose answer was cut short by the stop of the run, what was known by then counts (TTFT, queue time and the
gaps so far), and a TPOT that it had yet to get does not. Its E2E is missing: it may have been too long already."""

# `vllm bench serve` writes `e2el` in its result keys.
_SUMMARY_NAMES = {"e2e": "e2el"}


def in_window(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """The requests that were scheduled in the measured window."""
    return [r for r in records if r.phase == "window"]


def summarize(
    requests: Iterable[RequestRecord],
    iterations: Sequence[IterationRecord],
    window: Window,
    slo: "Slo | None" = None,
    waits: Waits | None = None,
) -> dict[str, Any]:
    """The flat summary of `docs/records.md`.

    Rates are work done for requests *scheduled* in the window per second of it, whenever that work ended. Latencies
    are those of its completed requests, percentiles by linear interpolation, `std` that of the population. `failed`
    counts every window request that did not complete, timeouts and unfinished ones among them. Engine figures cover
    the steps that began in the window.

    Args:
        requests: all of the run; those of other phases are left out here.
        iterations: all of the run.
        window: where the run measured.
        slo: what makes a request good; without it the goodput figures are None.
        waits: of the window's requests, where they are known already (see `workloads.pool.pool_waits`).
    """
    scheduled = in_window(requests)
    completed = [r for r in scheduled if r.status == "ok"]
    input_tokens = sum(r.prompt_tokens for r in completed)
    output_tokens = sum(r.output_tokens for r in completed)
    good = None if slo is None else [r for r in completed if slo.is_good(r)]

    def per_second(amount: int | None) -> float | None:
        return amount / window.duration_s if amount is not None and window.duration_s > 0 else None

    summary: dict[str, Any] = {
        "duration": window.duration_s,
        "completed": len(completed),
        "failed": len(scheduled) - len(completed),
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": per_second(len(completed)),
        "request_goodput": per_second(None if good is None else len(good)),
        "output_throughput": per_second(output_tokens),
        "total_token_throughput": per_second(input_tokens + output_tokens),
        "output_token_goodput": per_second(None if good is None else sum(r.output_tokens for r in good)),
        "good_requests": None if good is None else len(good),
        "num_unfinished": sum(r.status == "unfinished" for r in scheduled),
        **_admission_figures(scheduled),
    }
    summary |= _latencies_ms(completed, SAMPLES) | _engine_figures(iterations, window)
    return summary | (wait_times(scheduled, iterations) if waits is None else waits).summary()


def summarize_classes(
    requests: Iterable[RequestRecord],
    iterations: Sequence[IterationRecord],
    window: Window,
    slo: "Slo | None" = None,
    waits: Waits | None = None,
) -> dict[str, dict[str, Any]]:
    """The `classes` of `docs/records.md`: what `summarize` says of each class, as far as it can be told by request.

    Preemptions and recomputed tokens are those of the window's requests, whenever they occurred.

    Args:
        requests, iterations, window, slo, waits: as for `summarize`.

    Returns:
        Class name to flat numbers, the most urgent class first.
    """
    records = list(requests)
    scheduled = in_window(records)
    if waits is None:
        waits = wait_times(scheduled, iterations)
    summaries: dict[str, dict[str, Any]] = {}
    for priority, name in sorted({(r.priority, r.class_name) for r in records}):
        positions = [i for i, r in enumerate(scheduled) if r.class_name == name]
        numbers = _class_numbers([scheduled[i] for i in positions], window, slo)
        summaries[name] = {"priority": priority} | numbers | waits.take(positions).summary()
    return summaries


def _class_numbers(scheduled: Sequence[RequestRecord], window: Window, slo: "Slo | None") -> dict[str, Any]:
    completed = [r for r in scheduled if r.status == "ok"]
    recomputed_tokens = sum(r.recomputed_tokens for r in scheduled)
    output_tokens = sum(r.output_tokens for r in completed)
    return {
        "requests": len(scheduled),
        "completed": len(completed),
        "good_requests": None if slo is None else sum(slo.is_good(r) for r in completed),
        **_admission_figures(scheduled),
        "preemptions": sum(r.preemptions for r in scheduled),
        "preemptions_swap": sum(r.preemptions_swap for r in scheduled),
        "recomputed_tokens": recomputed_tokens,
        "recomputed_share": _ratio(recomputed_tokens, sum(_computed_tokens(r) for r in scheduled)),
        "output_throughput": output_tokens / window.duration_s if window.duration_s > 0 else None,
    } | _latencies_ms(completed, _CLASS_METRICS)


def _admission_figures(scheduled: Sequence[RequestRecord]) -> dict[str, Any]:
    """Who was not served, and for how long requests were kept waiting, whatever became of them."""
    waits_ns = [
        until - r.t_sched for r in scheduled if (until := r.t_end if r.t_admit is None else r.t_admit) is not None
    ]
    return {
        "num_shed": sum(r.status == "shed" for r in scheduled),
        "num_queue_timeouts": sum(r.status == "queue_timeout" for r in scheduled),
        "num_timeouts": sum(r.status == "timeout" for r in scheduled),
        "num_turned_away": sum(event.kind == TURNED_AWAY for r in scheduled for event in r.history),
        "num_retries": sum(r.attempts - 1 for r in scheduled),
        "max_wait_ms": max(waits_ns) / NS_PER_MS if waits_ns else None,
    }


def _computed_tokens(record: RequestRecord) -> int:
    """Tokens that steps computed for a request, those computed again among them."""
    if record.output_tokens:
        # The last token that came was never fed back.
        known_tokens = record.prompt_tokens + record.output_tokens - 1
        return known_tokens - record.cached_tokens + record.recomputed_tokens
    return sum(event.tokens for event in record.history if event.kind == "chunk")


def _latencies_ms(completed: Sequence[RequestRecord], metrics: Iterable[str]) -> dict[str, float | None]:
    """The distributions of these metrics over requests that ended well, as flat keys such as `p99_tpot_ms`."""
    distributions: dict[str, float | None] = {}
    for metric in metrics:
        values = [value for r in completed for value in SAMPLES[metric](r).values]
        distributions |= _distribution_ms(_SUMMARY_NAMES.get(metric, metric), values)
    return distributions


def _ratio(amount: int, to: int) -> float | None:
    return amount / to if to else None


def _distribution_ms(name: str, values_ns: Sequence[float]) -> dict[str, float | None]:
    import numpy as np

    labels = ["mean", "median", "std", *(f"p{q}" for q in SUMMARY_PERCENTILES), "max"]
    if not values_ns:
        return {f"{label}_{name}_ms": None for label in labels}
    ms = np.asarray(values_ns, dtype=np.float64) / NS_PER_MS
    numbers = [ms.mean(), np.median(ms), ms.std(), *np.percentile(ms, SUMMARY_PERCENTILES), ms.max()]
    return {f"{label}_{name}_ms": float(number) for label, number in zip(labels, numbers, strict=True)}


def _engine_figures(iterations: Sequence[IterationRecord], window: Window) -> dict[str, Any]:
    """Counts over the window's steps, and averages over its time: a moment without a step counts as empty.

    Of several replicas requests are added up, and shares are the mean of all.
    """
    steps = [s for s in iterations if window.start_ns <= s.t_start < window.end_ns]
    window_ns = window.end_ns - window.start_ns
    replicas = 1 + max((s.replica or 0 for s in iterations), default=0)

    def time_average(value: Callable[[IterationRecord], float]) -> float | None:
        if window_ns <= 0:
            return None
        return sum(value(s) * (min(s.t_end, window.end_ns) - s.t_start) for s in steps) / window_ns

    def busy_share(step: IterationRecord) -> float:
        busy_ns = step.execute_time_ns if step.device_time_ns is None else step.device_time_ns
        return busy_ns / (step.t_end - step.t_start) / replicas if step.t_end > step.t_start else 0.0

    def kv_utilization(step: IterationRecord) -> float:
        return step.kv_blocks_used / step.kv_blocks_total if step.kv_blocks_total else 0.0

    prefill_tokens = sum(s.prefill_tokens for s in steps)
    decode_tokens = sum(s.decode_tokens for s in steps)
    recomputed_tokens = sum(s.recomputed_tokens for s in steps)
    busy = time_average(busy_share)
    return {
        "preemptions": sum(s.preemptions_recompute + s.preemptions_swap for s in steps),
        "preemptions_recompute": sum(s.preemptions_recompute for s in steps),
        "preemptions_swap": sum(s.preemptions_swap for s in steps),
        "swapped_in_blocks": sum(s.swapped_in_blocks for s in steps),
        "swapped_out_blocks": sum(s.swapped_out_blocks for s in steps),
        "swapped_in_bytes": sum(s.swapped_in_bytes for s in steps),
        "swapped_out_bytes": sum(s.swapped_out_bytes for s in steps),
        "recomputed_tokens": recomputed_tokens,
        "recomputed_share": _ratio(recomputed_tokens, prefill_tokens + decode_tokens),
        "cached_tokens": sum(s.cached_tokens for s in steps),
        "mean_kv_utilization": time_average(lambda s: kv_utilization(s) / replicas),
        "max_kv_utilization": max((kv_utilization(s) for s in steps), default=None),
        "mean_running": time_average(lambda s: s.running),
        "mean_waiting": time_average(lambda s: s.waiting),
        "prefill_tokens": prefill_tokens,
        "decode_tokens": decode_tokens,
        "prefill_decode_ratio": _ratio(prefill_tokens, decode_tokens),
        "iterations": len(steps),
        "device_idle_share": None if busy is None else max(0.0, 1.0 - busy),
    }
