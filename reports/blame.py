"""Who held the KV blocks that others waited for.

The model. At some steps the request at the head of the queue finds no room in the KV cache, and everything behind it
waits too. The time from such a step to the next is that head's waiting time, and it is shared among the requests that
run then in proportion to the blocks each holds. A request holds what its history says when it is admitted and when it
computes a chunk, then enough for its prompt and the tokens it has produced, and nothing once it is preempted or has
ended. A block that two requests share through the prefix cache counts for both. So the shares of one head's time add
up to that time, and nobody is blamed for a time in which he held nothing.

It says who held the room, not that the others would have run in his place: that also hangs on seats and budget.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reports.histories import history_events

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Holder:
    """One request that held blocks while others waited for them.

    Attributes:
        block_seconds: blocks held times seconds, over the time in which a head waited.
        delay_s: its share of the heads' waiting time.
        delayed: (request id, seconds) of the heads that it delayed most, longest first.
        behind_request_s: its share of the time that requests behind the heads waited, in request-seconds.
    """

    request_id: str
    class_name: str
    block_seconds: float
    delay_s: float
    delayed: tuple[tuple[str, float], ...]
    behind_request_s: float


@dataclass(frozen=True, slots=True)
class Blame:
    """All delays for want of blocks in a run's window.

    Attributes:
        blocked_s: time in which the head of the queue waited for blocks that others held.
        heads: how many requests were that head at some time.
        holders: how many requests held blocks then.
        top: those that held most, by block-seconds.
    """

    blocked_s: float
    heads: int
    holders: int
    top: tuple[Holder, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Holdings:
    """Blocks held, constant from one step to another.

    Attributes:
        request: row number of the request that holds them.
        first, end: steps between which it holds them, the latter excluded.
        blocks: how many.
    """

    request: Ints
    first: Ints
    end: Ints
    blocks: Floats


def blame(
    requests: "pd.DataFrame",
    iterations: "pd.DataFrame",
    block_size: int,
    window: Mapping[str, Any] | None = None,
    *,
    top: int = 10,
    delayed: int = 3,
) -> Blame:
    """Share the waiting for blocks among those who held them.

    Args:
        requests, iterations: a run's tables.
        block_size: tokens per block.
        window: `window` of `run.json`; only steps that began in it count. None counts every step.
        top: how many holders to name, most block-seconds first.
        delayed: how many of those that each delayed to name.
    """
    starts = iterations["t_start"].to_numpy(dtype=np.int64)
    if len(starts) == 0:
        return Blame(0.0, 0, 0, ())
    blocked = iterations["blocked_request"]
    counted = (iterations["wait_cause"] == "blocks").to_numpy() & blocked.notna().to_numpy()
    if window is not None and window.get("start_ns") is not None and window.get("end_ns") is not None:
        counted &= (starts >= window["start_ns"]) & (starts < window["end_ns"])
    held = _holdings(requests, starts, block_size)
    # Differences at the first and after the last step of each holding, summed up, are the blocks held at each step.
    changes = np.zeros(len(starts) + 1)
    np.add.at(changes, held.first, held.blocks)
    np.add.at(changes, held.end, -held.blocks)
    total = np.cumsum(changes)[:-1]
    counted &= total > 0
    length_s = np.diff(np.append(starts, iterations["t_end"].to_numpy(dtype=np.int64)[-1])) / NS_PER_S
    time_s = np.where(counted, length_s, 0.0)
    per_block_s = np.divide(time_s, total, out=np.zeros(len(starts)), where=total > 0)
    behind = per_block_s * np.maximum(iterations["waiting"].to_numpy(dtype=np.float64) - 1, 0)

    def by_request(weight: Floats) -> Floats:
        """Sum over each request's holdings of blocks times weight, whatever their number of steps."""
        sums = np.append(0.0, np.cumsum(weight))
        weights = held.blocks * (sums[held.end] - sums[held.first])
        return np.bincount(held.request, weights=weights, minlength=len(requests)).astype(np.float64)

    block_seconds, delay_s, behind_s = by_request(time_s), by_request(per_block_s), by_request(behind)
    ranked = np.argsort(-block_seconds, kind="stable")
    ranked = ranked[block_seconds[ranked] > 0]
    names, classes = requests["request_id"].to_numpy(), requests["class_name"].to_numpy()
    return Blame(
        blocked_s=float(time_s.sum()),
        heads=int(blocked[counted].nunique()),
        holders=len(ranked),
        top=tuple(
            Holder(
                request_id=str(names[i]),
                class_name=str(classes[i]),
                block_seconds=float(block_seconds[i]),
                delay_s=float(delay_s[i]),
                delayed=_most_delayed(held, int(i), per_block_s, blocked, delayed),
                behind_request_s=float(behind_s[i]),
            )
            for i in ranked[:top]
        ),
    )


def _most_delayed(
    held: _Holdings, request: int, per_block_s: Floats, blocked: "pd.Series[str]", limit: int
) -> tuple[tuple[str, float], ...]:
    """The heads that one request delayed most, each with its share of their time."""
    own = np.zeros(len(per_block_s) + 1)
    mine = held.request == request
    np.add.at(own, held.first[mine], held.blocks[mine])
    np.add.at(own, held.end[mine], -held.blocks[mine])
    shares = np.cumsum(own)[:-1] * per_block_s
    steps = np.flatnonzero(shares)
    by_head = blocked.iloc[steps].to_frame("head").assign(share=shares[steps]).groupby("head", sort=False)["share"]
    longest = by_head.sum().sort_values(ascending=False, kind="stable").head(limit)
    return tuple((str(head), float(share)) for head, share in longest.items())


def _holdings(requests: "pd.DataFrame", starts: Ints, block_size: int) -> _Holdings:
    """From the histories and the times of the output tokens."""
    events = history_events(requests)
    events = events[events["kind"].isin(("admitted", "chunk", "preempted", "finished"))]
    ends = events["kind"].isin(("preempted", "finished")).to_numpy()
    times = events["time_ns"].to_numpy(dtype=np.int64)
    planned = (events["kind"] != "finished").to_numpy()
    # What is planned holds from the step that plans it, which begins before; what a step leaves, from the next one on.
    steps = np.where(
        planned, np.searchsorted(starts, times, side="right") - 1, np.searchsorted(starts, times, side="left")
    )
    token_request, token_step, token_blocks = _decode_holdings(requests, starts, block_size)
    request = np.concatenate([token_request, events["request"].to_numpy(dtype=np.int64)])
    step = np.maximum(np.concatenate([token_step, steps]), 0)
    blocks = np.concatenate([token_blocks, np.where(ends, 0, events["blocks"].to_numpy(dtype=np.int64))])
    # Stable: tokens come before what a history says of the same step, and a history keeps its order.
    order = np.lexsort((step, request))
    request, step, blocks = request[order], step[order], blocks[order]
    end = np.full(len(step), len(starts))
    followed = request[1:] == request[:-1]
    end[:-1][followed] = step[1:][followed]
    holds = (blocks > 0) & (end > step)
    return _Holdings(request[holds], step[holds], end[holds], blocks[holds].astype(np.float64))


def _decode_holdings(requests: "pd.DataFrame", starts: Ints, block_size: int) -> tuple[Ints, Ints, Ints]:
    """Request, step and blocks where a request's tokens begin to need another number of blocks."""
    lengths = requests["chunk_times"].map(len).to_numpy(dtype=np.int64)
    if lengths.sum() == 0:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty, empty
    request = np.repeat(np.arange(len(requests)), lengths)
    times = np.concatenate(list(requests["chunk_times"])).astype(np.int64)
    tokens = np.cumsum(np.concatenate(list(requests["chunk_tokens"])).astype(np.int64))
    first = np.cumsum(lengths) - lengths
    before = np.append(0, tokens)[first]
    known = requests["prompt_tokens"].to_numpy(dtype=np.int64)[request] + tokens - before[request]
    blocks = -(-known // block_size)
    changes = np.append(True, (blocks[1:] != blocks[:-1]) | (request[1:] != request[:-1]))
    return request[changes], np.searchsorted(starts, times[changes], side="left"), blocks[changes]
