"""What a run's trace and requests say in numbers, of the measured window alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from workloads.metrics import NS_PER_MS, in_window, queue_ns, ttft_ns
from workloads.records import RequestRecord

if TYPE_CHECKING:
    import pandas as pd

KV_FULL = 0.95
# As many later arrivals going ahead of one request are more than a little shuffling.
MANY = 10

# What can keep a step from admitting more, as `wait_cause` names it.
SCHEDULER_CAUSES = ("seats", "budget", "blocks", "batch")
# Turned away without a wait.
_NEVER_QUEUED = frozenset(("refused", "shed"))


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """The steps of the measured window.

    Attributes:
        steps: how many.
        at_seat_limit, at_token_budget, kv_full: share of steps that used all seats, the whole token budget, more
            than 95% of the KV blocks; a step may do all three.
        waiting: share of steps that left requests waiting.
        waiting_by_cause: share of steps that left requests waiting for that cause, by the scheduler's own word.
        host: planning time over step time.
        preemptions_recompute, preemptions_swap: how many.
        recomputed: share of the computed tokens that had been computed before.
        cached_tokens: tokens found in the prefix cache.
        prefill_tokens, decode_tokens: computed.
        step_ms, step_with_prefill_ms, step_decode_only_ms: median length; None where there was no such step.
    """

    steps: int
    at_seat_limit: float
    at_token_budget: float
    kv_full: float
    waiting: float
    waiting_by_cause: Mapping[str, float]
    host: float | None
    preemptions_recompute: int
    preemptions_swap: int
    recomputed: float | None
    cached_tokens: int
    prefill_tokens: int
    decode_tokens: int
    step_ms: float
    step_with_prefill_ms: float | None
    step_decode_only_ms: float | None


@dataclass(frozen=True, slots=True)
class FirstTokenStatistics:
    """Where the time to the first token goes, over the requests of the window that got one.

    Attributes:
        requests: how many.
        queue_ms: mean time from the scheduled arrival to the first admission.
        prefill_ms: mean time from there to the first token.
        slowest_queue_share: share of the queue in the TTFT of the slowest 5%.
    """

    requests: int
    queue_ms: float
    prefill_ms: float
    slowest_queue_share: float | None

    @property
    def queue_share(self) -> float | None:
        total = self.queue_ms + self.prefill_ms
        return self.queue_ms / total if total > 0 else None


@dataclass(frozen=True, slots=True)
class Overtaken:
    """The requests of one class that `MANY` or more later arrivals overtook on the way to their first admission.

    Attributes:
        requests: how many.
        times, wait_ms: how many overtook the one that most did, and how long it stood in the queue.
    """

    class_name: str
    requests: int
    times: int
    wait_ms: float


def step_statistics(
    iterations: "pd.DataFrame", window: Mapping[str, Any] | None, settings: Mapping[str, Any]
) -> StepStatistics | None:
    """Statistics of the window's steps; None when there was none.

    Args:
        window: `window` of `run.json`; None counts every step.
        settings: for `max_num_seqs` and `max_num_batched_tokens`.
    """
    if window is not None and window.get("start_ns") is not None and window.get("end_ns") is not None:
        inside = (iterations["t_start"] >= window["start_ns"]) & (iterations["t_start"] < window["end_ns"])
        iterations = iterations[inside]
    steps = len(iterations)
    if steps == 0:
        return None
    numbers = iterations.select_dtypes("number")
    t = {name: numbers[name].to_numpy(dtype=np.float64) for name in numbers.columns}
    tokens = t["prefill_tokens"] + t["decode_tokens"]
    length = t["t_end"] - t["t_start"]
    waiting = t["waiting"] > 0
    seats = t["running"] >= settings["max_num_seqs"]
    budget = tokens >= settings["max_num_batched_tokens"]
    full = t["kv_blocks_used"] > KV_FULL * t["kv_blocks_total"]
    with_prefill, decode_only = t["prefill_tokens"] > 0, (t["prefill_tokens"] == 0) & (t["decode_tokens"] > 0)
    return StepStatistics(
        steps=steps,
        at_seat_limit=float(seats.mean()),
        at_token_budget=float(budget.mean()),
        kv_full=float(full.mean()),
        waiting=float(waiting.mean()),
        waiting_by_cause={
            cause: float((waiting & (iterations["wait_cause"] == cause).to_numpy()).mean())
            for cause in SCHEDULER_CAUSES
        },
        host=float(t["schedule_time_ns"].sum() / length.sum()) if length.sum() > 0 else None,
        preemptions_recompute=int(t["preemptions_recompute"].sum()),
        preemptions_swap=int(t["preemptions_swap"].sum()),
        recomputed=float(t["recomputed_tokens"].sum() / tokens.sum()) if tokens.sum() > 0 else None,
        cached_tokens=int(t["cached_tokens"].sum()),
        prefill_tokens=int(t["prefill_tokens"].sum()),
        decode_tokens=int(t["decode_tokens"].sum()),
        step_ms=float(np.median(length)) / 1e6,
        step_with_prefill_ms=float(np.median(length[with_prefill])) / 1e6 if with_prefill.any() else None,
        step_decode_only_ms=float(np.median(length[decode_only])) / 1e6 if decode_only.any() else None,
    )


def first_token_statistics(requests: Sequence[RequestRecord]) -> FirstTokenStatistics | None:
    """Statistics of a run's requests; None when none of the window got a token."""
    pairs = [
        (queue, ttft)
        for request in in_window(requests)
        if (queue := queue_ns(request)) is not None and (ttft := ttft_ns(request)) is not None
    ]
    if not pairs:
        return None
    queue_ms, ttft_ms = (np.array(values, dtype=np.float64) / NS_PER_MS for values in zip(*pairs, strict=True))
    slowest = ttft_ms >= np.quantile(ttft_ms, 0.95)
    slowest_total = ttft_ms[slowest].sum()
    return FirstTokenStatistics(
        requests=len(pairs),
        queue_ms=float(queue_ms.mean()),
        prefill_ms=float((ttft_ms - queue_ms).mean()),
        slowest_queue_share=float(queue_ms[slowest].sum() / slowest_total) if slowest_total > 0 else None,
    )


def overtaken(requests: Sequence[RequestRecord]) -> tuple[Overtaken, ...]:
    """Who of the window stood in the queue while many that came later were admitted, by class, the worst first.

    A request that was never admitted stood there until it ended. Only the last try counts of one that was sent again:
    while its client pauses nobody can be said to overtake it.

    Args:
        requests: all of the run, since those outside the window overtake too.
    """
    admitted = sorted((r.t_sched, r.t_admit) for r in requests if r.t_admit is not None)
    arrivals, admissions = np.array(admitted, dtype=np.int64).reshape(-1, 2).T
    by_class: dict[str, list[tuple[int, float]]] = {}
    for request in in_window(requests):
        since, until = _last_in_queue(request)
        if since is None or until is None:
            continue
        later = admissions[np.searchsorted(arrivals, request.t_sched, side="right") :]
        times = int(((later >= since) & (later < until)).sum())
        if times >= MANY:
            by_class.setdefault(request.class_name, []).append((times, (until - since) / NS_PER_MS))
    found = (Overtaken(name, len(several), *max(several)) for name, several in by_class.items())
    return tuple(sorted(found, key=lambda one: one.times, reverse=True))


def _last_in_queue(request: RequestRecord) -> tuple[int | None, int | None]:
    """From when to when a request last stood in the queue before its first admission."""
    if request.status in _NEVER_QUEUED:
        return None, None
    queued = [event.time_ns for event in request.history if event.kind == "queued"]
    return (queued[-1] if queued else request.t_send), (request.t_end if request.t_admit is None else request.t_admit)
