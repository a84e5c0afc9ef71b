"""What bounds a run and where its latency goes, as far as its own trace tells.

Every finding carries its number. None says what would happen under other settings: a trace does not show that.
Only steps and requests of the measured window count.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reports.format import DASH, count, is_known, milliseconds, percent, seconds
from reports.run_statistics import MANY, FirstTokenStatistics, Overtaken, StepStatistics
from reports.settings import assignment
from reports.view import Finding

# Below these shares a cause is background, not a bound.
RARELY_WAITING = 0.05
MOSTLY_IDLE = 0.30
# A second cause this close to the first is named with it.
NEAR_TIE = 0.80

ADMISSION_LIMITS = ("max_queue_len", "max_queue_tokens", "queue_timeout", "max_predicted_wait")
# Each of these lets a later arrival go ahead of an earlier one, as a setting at another value than this.
IN_ORDER = {"policy": "fcfs", "short_first_tokens": 0, "retried_first": False}
# Waits by the means of a summary: those that are the scheduler's.
QUEUE_WAITS = ("seats", "budget", "blocks", "behind_head", "batch")


def findings(
    steps: StepStatistics | None,
    first_token: FirstTokenStatistics | None,
    passed: Sequence[Overtaken],
    meta: Mapping[str, Any],
) -> tuple[Finding, ...]:
    """Plain statements about a run, the most telling first.

    Args:
        passed: by class, those whom many overtook.
        meta: its `run.json`, for the settings and for what its `summary` and `classes` say.
    """
    if steps is None:
        return (Finding("No steps", "The engine made no step in the measured window: there is nothing to explain."),)
    idle = meta["summary"].get("device_idle_share")
    found = [_bound(steps, meta)]
    if first_token is not None:
        found.append(_first_token(first_token, meta["summary"].get("mean_wait_retry_ms")))
    found += _overtaken(passed, meta["settings"]) + _turned_away(meta)
    found.append(_preemption(steps, meta))
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


def _bound(steps: StepStatistics, meta: Mapping[str, Any]) -> Finding:
    settings, idle = meta["settings"], meta["summary"].get("device_idle_share")
    if (growing := _bound_by_batch(steps, meta["summary"])) is not None:
        return growing
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
        "budget": (
            "the token budget",
            f"the budget of {count(settings.get('max_num_batched_tokens'))} tokens was used up",
        ),
        "blocks": ("KV blocks", "there was no room for the next request's KV blocks"),
        "batch": ("the batching mode", "the batch was closed or still growing"),
    }
    ranked = sorted(steps.waiting_by_cause.items(), key=lambda item: -item[1])
    top = [cause for cause, share in ranked if share >= NEAR_TIE * ranked[0][1]]
    title = "Bound by " + " and ".join(names[cause][0] for cause in top)
    parts = [f"in {percent(share)} {names[cause][1]}" for cause, share in ranked if share > 0]
    return Finding(
        title, f"Requests were left waiting in {percent(steps.waiting)} of the steps: " + "; ".join(parts) + "."
    )


def _bound_by_batch(steps: StepStatistics, summary: Mapping[str, Any]) -> Finding | None:
    """No step runs while a batch grows, so steps do not show that wait; the requests' own waits do."""
    waits = {cause: wait for cause in QUEUE_WAITS if is_known(wait := summary.get(f"mean_wait_{cause}_ms"))}
    batch_ms = waits.get("batch", 0.0)
    seen = steps.waiting_by_cause["batch"] >= max(steps.waiting_by_cause.values())
    if batch_ms <= steps.step_ms or batch_ms < max(waits.values()) or (seen and steps.waiting >= RARELY_WAITING):
        return None
    return Finding(
        "Bound by the batching mode",
        f"A request waited {milliseconds(batch_ms)} in the mean for a batch that was closed or still growing, "
        f"{percent(batch_ms / sum(waits.values()))} of its time in the queue. Steps left requests waiting in "
        f"{percent(steps.waiting)} only: none runs while a batch grows.",
    )


def _first_token(stats: FirstTokenStatistics, pauses_ms: float | None) -> Finding:
    text = (
        f"Of the mean {milliseconds(stats.queue_ms + stats.prefill_ms)} to the first token, "
        f"{milliseconds(stats.queue_ms)} ({percent(stats.queue_share)}) passed before admission and "
        f"{milliseconds(stats.prefill_ms)} in prefill ({count(stats.requests)} requests)."
    )
    if stats.slowest_queue_share is not None:
        text += f" Among the slowest 5% the queue took {percent(stats.slowest_queue_share)}."
    if pauses_ms:
        text += f" {milliseconds(pauses_ms)} of the wait were clients' pauses before they sent again."
    share = stats.queue_share
    where = "split between queue and prefill"
    if share is not None and share >= 0.6:
        where = "spent in the queue"
    elif share is not None and share <= 0.4:
        where = "spent in prefill"
    return Finding(f"Time to first token is {where}", text)


def _overtaken(passed: Sequence[Overtaken], settings: Mapping[str, Any]) -> list[Finding]:
    rules = [
        assignment(name, value) for name, usual in IN_ORDER.items() if (value := settings.get(name, usual)) != usual
    ]
    if not passed or not rules or settings.get("aging"):
        return []
    who = "; ".join(
        f"{count(one.requests)} of class {one.class_name}, the worst overtaken by {count(one.times)} in "
        f"{milliseconds(one.wait_ms)}"
        for one in passed
    )
    return [
        Finding(
            "Requests were overtaken",
            f"{count(sum(one.requests for one in passed))} requests stood in the queue while {count(MANY)} or more "
            f"later ones were admitted: {who}. Nothing limits that with {' and '.join(rules)} while aging is off.",
        )
    ]


def _turned_away(meta: Mapping[str, Any]) -> list[Finding]:
    summary = meta["summary"]
    shed, timed_out, tries = (
        value if is_known(value := summary.get(key)) else 0
        for key in ("num_shed", "num_queue_timeouts", "num_turned_away")
    )
    if shed + timed_out + tries == 0:
        return []
    total = (summary.get("completed") or 0) + (summary.get("failed") or 0)
    text = (
        f"{count(shed + timed_out)} of {count(total)} requests ({percent((shed + timed_out) / total)}): "
        f"{count(shed)} on arrival, {count(timed_out)} after waiting too long"
        f"{_by_class(meta, 'num_shed', 'num_queue_timeouts')}."
    )
    if tries > shed + timed_out:
        text += (
            f" That is for good: {count(tries)} tries were turned away, and clients sent "
            f"{count(summary.get('num_retries'))} times again."
        )
    limits = [(name, meta["settings"].get(name)) for name in ADMISSION_LIMITS]
    if active := [assignment(name, value) for name, value in limits if value]:
        text += f" The limits: {', '.join(active)}."
    return [Finding("Turned away", text)]


def _by_class(meta: Mapping[str, Any], *keys: str) -> str:
    """` (batch 8, interactive 2)`: a sum of counts by class, empty where there is one class only."""
    classes = meta.get("classes") or {}
    if len(classes) < 2:
        return ""
    return f" ({', '.join(f'{name} {count(sum(c.get(key) or 0 for key in keys))}' for name, c in classes.items())})"


def _preemption(steps: StepStatistics, meta: Mapping[str, Any]) -> Finding:
    total = steps.preemptions_recompute + steps.preemptions_swap
    if total == 0:
        return Finding("No preemptions", f"0 preemptions in {count(steps.steps)} steps; nothing was computed twice.")
    text = (
        f"{count(total)} preemptions in the {count(steps.steps)} steps of the window: "
        f"{count(steps.preemptions_recompute)} by recompute, {count(steps.preemptions_swap)} by swap. "
        f"{percent(steps.recomputed)} of the computed tokens had been computed before."
    )
    victims = sum(numbers.get("preemptions") or 0 for numbers in (meta.get("classes") or {}).values())
    if victims:
        text += (
            f" The window's requests were preempted {count(victims)} times{_by_class(meta, 'preemptions')} and waited "
            f"{seconds(meta['summary'].get('preempted_wait_s'))} in all to run again."
        )
    return Finding("Preemptions", text)


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


_CAUSES = (("seats", "seats"), ("budget", "the token budget"), ("blocks", "KV blocks"), ("batch", "the batch"))


def _share_of(cause: str) -> Callable[[StepStatistics], str]:
    return lambda steps: percent(steps.waiting_by_cause[cause])


_STEP_INDICATORS: tuple[tuple[str, Callable[[StepStatistics], str]], ...] = (
    ("Steps that left requests waiting", lambda s: percent(s.waiting)),
    *((f"Steps that left them waiting for {what}", _share_of(cause)) for cause, what in _CAUSES),
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
