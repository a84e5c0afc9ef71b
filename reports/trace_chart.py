"""A run's steps over time, small enough to draw."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reports.format import MIB

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

# A chart is some 600 pixels wide: more points than this only hide each other.
MAX_POINTS = 600
# The ratio of two sums is noise over single steps, which are often all decode; it gets wider bins.
MAX_RATIO_POINTS = 60
# A replica that has work begins its next step within this time.
_BETWEEN_STEPS_NS = 10_000_000


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
        running, waiting: means over the bin. Like the blocks, of all replicas together.
        recompute_preemptions, swap_preemptions: counted since the first step, at the bin's end.
        swap_out_mib_s, swap_in_mib_s: traffic to and from host memory over the bin, MiB/s.
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
    swap_out_mib_s: Floats
    swap_in_mib_s: Floats
    window_s: tuple[float, float] | None

    @property
    def has_swap_traffic(self) -> bool:
        """Whether any block went to or came from host memory."""
        return bool(self.swap_out_mib_s.any() or self.swap_in_mib_s.any())

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


def trace_chart(label: str, iterations: "pd.DataFrame", window: Mapping[str, Any] | None) -> TraceChart | None:
    """The chart of a run's `iterations.parquet`; None when there was no step."""
    n = len(iterations)
    if n == 0:
        return None
    numbers = iterations.select_dtypes("number")
    column = {name: numbers[name].to_numpy(dtype=np.float64) for name in numbers.columns}
    origin = column["t_start"][0]
    t_s = (column["t_start"] - origin) / 1e9
    per_point, per_ratio = -(-n // MAX_POINTS), -(-n // MAX_RATIO_POINTS)
    starts, ratio_starts = np.arange(0, n, per_point), np.arange(0, n, per_ratio)
    sizes = np.diff(np.append(starts, n))

    def mean(values: Floats) -> Floats:
        return np.add.reduceat(values, starts) / sizes

    lengths_s = bin_lengths_s(iterations, starts)

    def mib_per_s(values: Floats) -> Floats:
        total = np.add.reduceat(values, starts) / MIB
        return np.divide(total, lengths_s, out=np.zeros(len(starts)), where=lengths_s > 0)

    def counted(values: Floats) -> Floats:
        return np.cumsum(np.add.reduceat(values, starts))

    used, running, waiting = (over_replicas(column, name) for name in ("kv_blocks_used", "running", "waiting"))
    blocks = column["kv_blocks_total"] * len(_replicas(column))
    kv_percent = 100 * np.divide(used, blocks, out=np.zeros(n), where=blocks > 0)
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
        running=mean(running),
        waiting=mean(waiting),
        recompute_preemptions=counted(column["preemptions_recompute"]),
        swap_preemptions=counted(column["preemptions_swap"]),
        swap_out_mib_s=mib_per_s(column["swapped_out_bytes"]),
        swap_in_mib_s=mib_per_s(column["swapped_in_bytes"]),
        window_s=None if window is None else seconds_since(origin, window),
    )


def over_replicas(column: Mapping[str, Floats], name: str) -> Floats:
    """A number of the engine's state at the start of each step, summed over all replicas.

    What a step says of its replica holds until that replica's next one, or until its end where none follows at once.

    Args:
        column: of a run's steps, in the order of their starts.
    """
    replicas = _replicas(column)
    if len(replicas) == 1:
        return column[name]
    starts, total = column["t_start"], np.zeros(len(column["t_start"]))
    for replica in replicas:
        own = np.flatnonzero(column["replica"] == replica)
        ends = column["t_end"][own]
        following = np.append(starts[own[1:]], np.inf)
        until = np.where(following - ends <= _BETWEEN_STEPS_NS, following, ends)
        latest = np.searchsorted(starts[own], starts, side="right") - 1
        known = latest >= 0
        known[known] = starts[known] < until[latest[known]]
        total[known] += column[name][own[latest[known]]]
    return total


def _replicas(column: Mapping[str, Floats]) -> Floats:
    """Their numbers; a run of one engine has none, which stands for one."""
    numbers = column.get("replica")
    return np.zeros(1) if numbers is None or np.isnan(numbers).all() else np.unique(numbers)


def bin_lengths_s(iterations: "pd.DataFrame", starts: NDArray[np.int64]) -> Floats:
    """Seconds from the start of each bin's first step to that of the next bin, or to the end of the last step.

    Args:
        starts: index of each bin's first step.
    """
    edges = np.append(iterations["t_start"].to_numpy()[starts], iterations["t_end"].to_numpy()[-1])
    return np.diff(edges) / 1e9


def seconds_since(origin_ns: float, window: Mapping[str, Any]) -> tuple[float, float] | None:
    """The window in seconds since `origin_ns`; None when it has no bounds."""
    start_ns, end_ns = window.get("start_ns"), window.get("end_ns")
    if start_ns is None or end_ns is None:
        return None
    return (start_ns - origin_ns) / 1e9, (end_ns - origin_ns) / 1e9
