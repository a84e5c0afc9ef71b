"""What bounds a run and where its latency goes, as far as its own trace tells.

Every finding carries its number. None says what would happen under other settings: a trace does not show that.
Only steps and requests of the measured window count.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.format import DASH, count, milliseconds, percent
from reports.view import Finding
from workloads.metrics import NS_PER_MS, in_window, queue_ns, ttft_ns
from workloads.records import RequestRecord

if TYPE_CHECKING:
    import pandas as pd

KV_FULL = 0.95
# Below these shares a cause is background, not a bound.
RARELY_WAITING = 0.05
MOSTLY_IDLE = 0.30
# A second cause this close to the first is named with it.
NEAR_TIE = 0.80


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """The steps of the measured window.

    Attributes:
        steps: how many.
        at_seat_limit, at_token_budget, kv_full: share of steps that used all seats, the whole token budget, more
            than 95% of the KV blocks; a step may do all three.
        waiting: share of steps that left requests waiting.
        waiting_by_cause: share of steps that left requests waiting while that limit was reached. `kv_blocks` also
            counts steps with a preemption, and those where neither seats nor budget were used up: what kept the
            next request out was then room for its blocks.
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
    t = {name: iterations[name].to_numpy(dtype=np.float64) for name in iterations.columns}
    tokens = t["prefill_tokens"] + t["decode_tokens"]
    length = t["t_end"] - t["t_start"]
    waiting = t["waiting"] > 0
    seats = t["running"] >= settings["max_num_seqs"]
    budget = tokens >= settings["max_num_batched_tokens"]
    full = t["kv_blocks_used"] > KV_FULL * t["kv_blocks_total"]
    preempting = (t["preemptions_recompute"] + t["preemptions_swap"]) > 0
    no_room = full | preempting | ~(seats | budget)
    with_prefill, decode_only = t["prefill_tokens"] > 0, (t["prefill_tokens"] == 0) & (t["decode_tokens"] > 0)
    return StepStatistics(
        steps=steps,
        at_seat_limit=float(seats.mean()),
        at_token_budget=float(budget.mean()),
        kv_full=float(full.mean()),
        waiting=float(waiting.mean()),
        waiting_by_cause={
            "seats": float((waiting & seats).mean()),
            "token_budget": float((waiting & budget).mean()),
            "kv_blocks": float((waiting & no_room).mean()),
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


def findings(
    steps: StepStatistics | None, first_token: FirstTokenStatistics | None, meta: Mapping[str, Any]
) -> tuple[Finding, ...]:
    """Plain statements about a run, the most telling first.

    Args:
        meta: its `run.json`, for the settings and for `device_idle_share`, which is computed where the summary is.
    """
    if steps is None:
        return (Finding("No steps", "The engine made no step in the measured window: there is nothing to explain."),)
    idle = meta["summary"].get("device_idle_share")
    found = [_bound(steps, idle, meta["settings"])]
    if first_token is not None:
        found.append(_first_token(first_token))
    found.append(_preemption(steps))
    if steps.step_with_prefill_ms is not None and steps.step_decode_only_ms is not None:
        found.append(
            Finding(
                "Prefill beside decode",
                f"A step with prefill takes {milliseconds(steps.step_with_prefill_ms)} (median), a step that only "
                f"decodes {milliseconds(steps.step_decode_only_ms)}.",
            )
        )
    found.append(_device(steps, idle))
    return tuple(found)


def _bound(steps: StepStatistics, idle: float | None, settings: Mapping[str, Any]) -> Finding:
    if steps.waiting < RARELY_WAITING:
        text = f"Requests were left waiting in only {percent(steps.waiting)} of the steps"
        if idle is None:
            return Finding("Not bound by the scheduler", text + ".")
        text += f", and the device was idle {percent(idle)} of the time"
        if idle >= MOSTLY_IDLE:
            return Finding("Bound by the load offered", text + ".")
        step = f"a step takes {milliseconds(steps.step_ms)} (median), which sets the latency"
        return Finding("Bound by compute", f"{text}: {step}.")
    names = {
        "seats": ("seats", f"all {count(settings.get('max_num_seqs'))} seats were taken"),
        "token_budget": (
            "the token budget",
            f"the budget of {count(settings.get('max_num_batched_tokens'))} tokens was used up",
        ),
        "kv_blocks": ("KV blocks", "there was no room for the next request's KV blocks"),
    }
    ranked = sorted(steps.waiting_by_cause.items(), key=lambda item: -item[1])
    top = [cause for cause, share in ranked if share >= NEAR_TIE * ranked[0][1]]
    title = "Bound by " + " and ".join(names[cause][0] for cause in top)
    parts = [f"in {percent(share)} {names[cause][1]}" for cause, share in ranked if share > 0]
    return Finding(
        title, f"Requests were left waiting in {percent(steps.waiting)} of the steps: " + "; ".join(parts) + "."
    )


def _first_token(stats: FirstTokenStatistics) -> Finding:
    text = (
        f"Of the mean {milliseconds(stats.queue_ms + stats.prefill_ms)} to the first token, "
        f"{milliseconds(stats.queue_ms)} ({percent(stats.queue_share)}) passed before admission and "
        f"{milliseconds(stats.prefill_ms)} in prefill ({count(stats.requests)} requests)."
    )
    if stats.slowest_queue_share is not None:
        text += f" Among the slowest 5% the queue took {percent(stats.slowest_queue_share)}."
    share = stats.queue_share
    where = "split between queue and prefill"
    if share is not None and share >= 0.6:
        where = "spent in the queue"
    elif share is not None and share <= 0.4:
        where = "spent in prefill"
    return Finding(f"Time to first token is {where}", text)


def _preemption(steps: StepStatistics) -> Finding:
    total = steps.preemptions_recompute + steps.preemptions_swap
    if total == 0:
        return Finding("No preemptions", f"0 preemptions in {count(steps.steps)} steps; nothing was computed twice.")
    return Finding(
        "Preemptions",
        f"{count(total)} preemptions in {count(steps.steps)} steps ({count(steps.preemptions_recompute)} by "
        f"recompute, {count(steps.preemptions_swap)} by swap); {percent(steps.recomputed)} of the computed tokens "
        "had been computed before.",
    )


def _device(steps: StepStatistics, idle: float | None) -> Finding:
    text = f"The device was idle {percent(idle)} of the time."
    if steps.host is not None:
        text += f" Planning on the host took {percent(steps.host)} of the steps' time."
    return Finding("Device time", text)


def indicators(steps: StepStatistics | None, first_token: FirstTokenStatistics | None) -> tuple[tuple[str, str], ...]:
    """The numbers behind the findings as (name, value), the same names in the same order for every run."""
    of_steps = [(name, DASH if steps is None else write(steps)) for name, write in _STEP_INDICATORS]
    of_requests = [(name, DASH if first_token is None else write(first_token)) for name, write in _REQUEST_INDICATORS]
    return (*of_steps, *of_requests)


_STEP_INDICATORS: tuple[tuple[str, Callable[[StepStatistics], str]], ...] = (
    ("Steps that left requests waiting", lambda s: percent(s.waiting)),
    ("Steps at the seat limit", lambda s: percent(s.at_seat_limit)),
    ("Steps at the token budget", lambda s: percent(s.at_token_budget)),
    ("Steps with KV use above 95%", lambda s: percent(s.kv_full)),
    ("Recomputed tokens", lambda s: percent(s.recomputed)),
    ("Prompt tokens from the prefix cache", lambda s: count(s.cached_tokens)),
    ("Median step", lambda s: milliseconds(s.step_ms)),
)
_REQUEST_INDICATORS: tuple[tuple[str, Callable[[FirstTokenStatistics], str]], ...] = (
    ("Mean wait before admission", lambda r: milliseconds(r.queue_ms)),
    ("Mean prefill until the first token", lambda r: milliseconds(r.prefill_ms)),
)
