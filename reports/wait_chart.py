"""How many requests waited over time, and for what, small enough to draw."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.histories import queue_stays
from reports.trace_chart import MAX_POINTS, Floats, bin_lengths_s, seconds_since

if TYPE_CHECKING:
    import pandas as pd

# What kept the scheduler from admitting more at a step. Those behind the head of the queue are told from the head.
QUEUE_CAUSES = ("seats", "budget", "blocks", "behind_head", "batch")


@dataclass(frozen=True, slots=True, eq=False)
class WaitChart:
    """Requests waiting over time, by cause, in bins of consecutive steps.

    Attributes:
        label: whose run it is.
        t_s: start of each bin's first step, seconds since the first step.
        waiting: cause to the mean number of requests over the bin's time; only causes that occurred.
        window_s: the measured part, None when unknown.
    """

    label: str
    t_s: Floats
    waiting: Mapping[str, Floats]
    window_s: tuple[float, float] | None


def wait_chart(
    label: str, iterations: "pd.DataFrame", requests: "pd.DataFrame", window: Mapping[str, Any] | None
) -> WaitChart | None:
    """The chart of a run's tables; None when neither a step left a request waiting nor a growing batch held one."""
    counts = waiting_by_cause(iterations)
    counts["batch"] = counts["batch"] + held_by_growing_batch(iterations, requests)
    if not any(values.any() for values in counts.values()):
        return None
    starts = np.arange(0, len(iterations), -(-len(iterations) // MAX_POINTS))
    lengths_s = bin_lengths_s(iterations, np.arange(len(iterations)))
    time_s = np.add.reduceat(lengths_s, starts)
    t_start = iterations["t_start"].to_numpy(dtype=np.float64)

    def mean(values: Floats) -> Floats:
        total = np.add.reduceat(values * lengths_s, starts)
        return np.divide(total, time_s, out=np.zeros(len(starts)), where=time_s > 0)

    return WaitChart(
        label=label,
        t_s=(t_start[starts] - t_start[0]) / 1e9,
        waiting={cause: mean(values) for cause, values in counts.items() if values.any()},
        window_s=None if window is None else seconds_since(t_start[0], window),
    )


def waiting_by_cause(iterations: "pd.DataFrame") -> dict[str, Floats]:
    """Requests that each step left waiting, by cause. With `blocks` the head waits for room, the rest for the head."""
    waiting = iterations["waiting"].to_numpy(dtype=np.float64)
    cause = iterations["wait_cause"]
    counts = {name: np.where(cause == name, waiting, 0.0) for name in QUEUE_CAUSES}
    head = np.where(iterations["blocked_request"].notna(), np.minimum(counts["blocks"], 1.0), 0.0)
    counts["behind_head"] = counts["blocks"] - head
    counts["blocks"] = head
    return counts


def held_by_growing_batch(iterations: "pd.DataFrame", requests: "pd.DataFrame") -> Floats:
    """Mean number of requests that a growing batch held between each step's start and the next one's.

    They came when no step was under way and were admitted by the next, so that no step left them waiting.
    """
    starts = iterations["t_start"].to_numpy(dtype=np.float64)
    held_ns = np.zeros(len(starts))
    stays = queue_stays(requests)
    stays = stays[stays["batch_grows"]]
    queued_ns = stays["queued_ns"].to_numpy()
    following = np.searchsorted(starts, queued_ns)
    # What lies before the first step or after the last has no place in a chart of steps.
    between = (following > 0) & (following < len(starts))
    until_ns = np.minimum(starts[following[between]], stays["left_ns"].to_numpy()[between])
    np.add.at(held_ns, following[between] - 1, until_ns - queued_ns[between])
    lengths_ns = np.diff(starts, append=np.inf)
    return np.divide(held_ns, lengths_ns, out=np.zeros(len(starts)), where=lengths_ns > 0)
