"""Which requests had to wait, and how long the longest wait was: what a summary's means do not show."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reports.histories import queue_stays

if TYPE_CHECKING:
    import pandas as pd

Flags = NDArray[np.bool_]


def window_requests(requests: "pd.DataFrame") -> "pd.DataFrame":
    """Those of a run's requests that were scheduled in its window."""
    return requests[requests["phase"] == "window"]


def had_to_wait(requests: "pd.DataFrame", iterations: "pd.DataFrame") -> Flags:
    """Which requests waited for more than the end of the step under way and their clients' own pauses.

    Those are they which the first step that began after they were queued did not admit, that a growing batch held
    though no step was under way, or that were preempted.
    """
    starts = iterations["t_start"].to_numpy(dtype=np.float64)
    ends = np.append(iterations["t_end"].to_numpy(dtype=np.float64), np.inf)
    stays = queue_stays(requests)
    passed_over = stays["left_ns"].to_numpy() >= ends[np.searchsorted(starts, stays["queued_ns"].to_numpy())]
    held = (stays["batch_grows"] & (stays["left_ns"] > stays["queued_ns"])).to_numpy()
    waited = np.zeros(len(requests), dtype=np.bool_)
    waited[stays["request"].to_numpy()[passed_over | held]] = True
    return waited | (requests["preemptions"] > 0).to_numpy()


def longest_wait_ms(requests: "pd.DataFrame") -> float | None:
    """The longest wait from the scheduled arrival to the first admission, or to the end of a request never admitted.

    All requests count, not only those that completed, so that turning the longest waiting away does not shorten it.
    """
    waits = requests["t_admit"].fillna(requests["t_end"]) - requests["t_sched"]
    longest: Any = waits.max()
    return float(longest) / 1e6 if waits.notna().any() else None
