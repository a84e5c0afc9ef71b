"""Whether a run can be trusted: did it measure what was asked, and nothing but that?

An invalid run says nothing about the engine. A run that missed its SLO is not invalid.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from math import ceil, sqrt
from statistics import median
from typing import Any

from workloads.arrivals import OpenLoop
from workloads.drive_result import DriveResult
from workloads.early_stop import INTERRUPTED
from workloads.metrics import NS_PER_MS, NS_PER_S, in_window
from workloads.plan import WorkloadPlan
from workloads.records import RequestRecord
from workloads.warmup import MAX_WARMUP_LEFT, warmup_left

MIN_WINDOW_REQUESTS = 20
MAX_FAILED_SHARE = 0.01
MAX_CACHED_SHARE = 0.01
# Beyond four standard deviations lies one honest schedule in 16,000.
RATE_DEVIATIONS = 4.0
MIN_LAG_LIMIT_MS = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    """One question put to a run.

    Attributes:
        ok: the answer is as it should be.
        value: what was found; None when there was nothing to look at.
        limit: the most (for `window_requests` the least) it may be.
        detail: the same for people, units included.
    """

    name: str
    ok: bool
    value: float | None
    limit: float | None
    detail: str


def check_validity(result: DriveResult, plan: WorkloadPlan) -> dict[str, Any]:
    """The `validity` of `run.json`.

    Every check has to be ok for the run to be valid, except `window_requests`: few requests only warn, since the
    verdict's interval says already how little they tell. None at all is invalid.
    """
    window_requests = in_window(result.requests)
    checks = [check(result, plan, window_requests) for check in _CHECKS]
    needed = [c for c in checks if c.name != "window_requests"]
    return {
        "valid": bool(window_requests) and all(c.ok for c in needed),
        "checks": [asdict(c) for c in checks],
    }


def _complete(result: DriveResult, plan: WorkloadPlan, requests: Sequence[RequestRecord]) -> Check:
    ok = result.stopped_early != INTERRUPTED
    return Check("complete", ok, None, None, "ran to its end" if ok else "interrupted before its end")


def _window_requests(result: DriveResult, plan: WorkloadPlan, requests: Sequence[RequestRecord]) -> Check:
    count = len(requests)
    detail = f"{count} requests were scheduled in the window"
    ok = count >= MIN_WINDOW_REQUESTS
    return Check("window_requests", ok, count, MIN_WINDOW_REQUESTS, detail if ok else f"{detail}: few to judge by")


def _offered_rate(result: DriveResult, plan: WorkloadPlan, requests: Sequence[RequestRecord]) -> Check:
    """Offered against asked: the number of arrivals in the window against what the process lets expect."""
    name, arrival = "offered_rate", plan.spec.arrival
    if not isinstance(arrival, OpenLoop) or plan.rate is None:
        return Check(name, True, None, None, "a closed loop asks for no rate")
    begin_s = plan.warmup_ns / NS_PER_S
    end_s = begin_s + result.window.duration_s
    expected = plan.rate * (arrival.work_until(end_s) - arrival.work_until(begin_s))
    if expected == 0:
        return Check(name, False, None, None, "the window is empty")
    # One request more or less is the edge of the window, not the rate.
    limit = (RATE_DEVIATIONS * sqrt(arrival.dispersion * expected) + 1) / expected
    value = abs(len(requests) / expected - 1)
    detail = f"{len(requests)} arrivals where {expected:.1f} were expected at {plan.rate:g} requests/s"
    return Check(name, value <= limit, value, limit, detail)


def _driver_lag(result: DriveResult, plan: WorkloadPlan, requests: Sequence[RequestRecord]) -> Check:
    """How late the driver itself was: after the arrival and after the step that was in progress then.

    For a step of one of several engines it does not wait.

    The limit is a median step, since a request that comes a moment too late waits for one more.
    """
    starts = [s.t_start for s in result.iterations]

    def lag_ns(record: RequestRecord) -> int:
        assert record.t_send is not None
        free_at = record.t_sched
        position = bisect_right(starts, record.t_sched) - 1
        if position >= 0 and result.iterations[position].replica is None:
            free_at = max(free_at, result.iterations[position].t_end)
        return max(0, record.t_send - free_at)

    if not requests:
        return Check("driver_lag", True, None, None, "no requests in the window")
    lags_ms = sorted(lag_ns(r) / NS_PER_MS for r in requests)
    value = lags_ms[ceil(0.99 * len(lags_ms)) - 1]
    step_ms = median(s.t_end - s.t_start for s in result.iterations) / NS_PER_MS if result.iterations else 0.0
    limit = max(MIN_LAG_LIMIT_MS, step_ms)
    detail = (
        f"99 % of the requests were sent within {value:.2f} ms of when they could be; a step takes {step_ms:.2f} ms"
    )
    return Check("driver_lag", value <= limit, value, limit, detail)


def _failures(result: DriveResult, plan: WorkloadPlan, requests: Sequence[RequestRecord]) -> Check:
    """Refused and failed requests. Timeouts are slow answers, and those that admission control turned away are what
    the settings ask for: both count in the verdict."""
    failed = [r for r in requests if r.status in ("refused", "failed")]
    value = len(failed) / len(requests) if requests else 0.0
    detail = f"{len(failed)} of {len(requests)} requests were refused or failed"
    if failed:
        detail += f", the first because: {failed[0].error}"
    return Check("failures", value <= MAX_FAILED_SHARE, value, MAX_FAILED_SHARE, detail)


def _cache_hits(result: DriveResult, plan: WorkloadPlan, requests: Sequence[RequestRecord]) -> Check:
    """Prompts are random and fresh but for shared prefixes, so a hit beyond one means that another run's cache was
    still there."""
    num_planned = 1 + max((r.index for r in requests), default=-1)
    intended = [p.shared_prefix_tokens for p in islice(plan, num_planned)]
    cached = sum(max(0, r.cached_tokens - intended[r.index]) for r in requests)
    prompts = sum(r.prompt_tokens for r in requests)
    value = cached / prompts if prompts else 0.0
    beyond = "" if plan.spec.shared_prefix is None else "beyond its shared prefixes, "
    detail = f"{cached} of {prompts} prompt tokens came from the prefix cache; {beyond}the workload repeats no prompt"
    return Check("unintended_cache_hits", value <= MAX_CACHED_SHARE, value, MAX_CACHED_SHARE, detail)


def _warmup_left(result: DriveResult, plan: WorkloadPlan, requests: Sequence[RequestRecord]) -> Check:
    """Share of the window's load that was missing because the system began empty."""
    served_s = [
        (r.t_end - r.t_admit) / NS_PER_S
        for r in requests
        if r.status == "ok" and r.t_end is not None and r.t_admit is not None
    ]
    window_s, warmup_s = result.window.duration_s, plan.warmup_ns / NS_PER_S
    value = warmup_left(served_s, warmup_s, window_s)
    if value is None:
        return Check("warmup_left", True, None, MAX_WARMUP_LEFT, "no request of the window was served to its end")
    mean_s = sum(served_s) / len(served_s)
    detail = (
        f"a warm-up of {warmup_s:g} s, a window of {window_s:.1f} s, requests served for {mean_s:.2f} s in the mean"
    )
    return Check("warmup_left", value <= MAX_WARMUP_LEFT, value, MAX_WARMUP_LEFT, detail)


_CHECKS: tuple[Callable[[DriveResult, WorkloadPlan, Sequence[RequestRecord]], Check], ...] = (
    _complete,
    _window_requests,
    _offered_rate,
    _driver_lag,
    _failures,
    _cache_hits,
    _warmup_left,
)
