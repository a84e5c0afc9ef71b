"""The classes of a workload beside each other."""

from collections.abc import Mapping
from typing import Any

from reports.format import count, milliseconds, percent, request_rate, text, token_rate
from reports.view import Table

_ROWS = (
    ("Priority (lower is more urgent)", "priority", text),
    ("Requests", "requests", count),
    ("Completed", "completed", count),
    ("Good requests", "good_requests", count),
    ("Turned away on arrival", "num_shed", count),
    ("Timed out in the queue", "num_queue_timeouts", count),
    ("Did not end in time", "num_timeouts", count),
    ("Preemptions", "preemptions", count),
    ("of these by swap", "preemptions_swap", count),
    ("Recomputed tokens", "recomputed_share", percent),
    ("Output tokens", "output_throughput", token_rate),
    ("p50 TTFT", "p50_ttft_ms", milliseconds),
    ("p95 TTFT", "p95_ttft_ms", milliseconds),
    ("p95 TPOT", "p95_tpot_ms", milliseconds),
    ("p95 E2E", "p95_e2el_ms", milliseconds),
    ("Longest in the queue, completed", "max_queue_ms", milliseconds),
)


def classes_table(meta: Mapping[str, Any]) -> Table | None:
    """What each class of a run got; None where the workload has one class only, since that is the whole run."""
    classes = meta.get("classes") or {}
    if len(classes) < 2:
        return None
    rows = [(name, *(write(numbers.get(key)) for numbers in classes.values())) for name, key, write in _ROWS]
    if meta.get("slo"):
        goodputs = (class_goodput(numbers, meta["summary"]) for numbers in classes.values())
        rows.insert(4, ("Goodput", *(request_rate(goodput) for goodput in goodputs)))
    return Table(("By class", *map(text, classes)), tuple(rows), numeric=frozenset(range(1, len(classes) + 1)))


def class_goodput(numbers: Mapping[str, Any], summary: Mapping[str, Any]) -> float | None:
    """Good requests of a class per second of the window; None without an SLO."""
    good, duration_s = numbers.get("good_requests"), summary.get("duration")
    return good / duration_s if good is not None and duration_s else None
