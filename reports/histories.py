"""The requests' histories as one table, when they stood in the queue, and what preemptions cost by them."""

import json
import math
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Preemption:
    """One preemption and the wait that it caused.

    Attributes:
        time_ns: when, by the run's clock.
        mode: `recompute` or `swap`.
        tokens, blocks: computed by then, and given up.
        winner: id of the request that got the room; empty when the victim gave way for want of room for itself.
        wait_s: until the victim was admitted again, or ended without that; None when the run ended first.
        ran_again: it was admitted again.
    """

    time_ns: int
    request_id: str
    class_name: str
    mode: str
    tokens: int
    blocks: int
    winner: str
    wait_s: float | None
    ran_again: bool


def history_events(requests: "pd.DataFrame") -> "pd.DataFrame":
    """All events of all requests, one row each, in the order of `requests` and of each history.

    Args:
        requests: `requests.parquet`.

    Returns:
        Columns `request` (row number in `requests`), `time_ns`, `kind`, `tokens`, `blocks`, `detail`.
    """
    import pandas as pd

    histories = json.loads(f"[{','.join(requests['history'])}]")
    rows = [(request, *event) for request, events in enumerate(histories) for event in events]
    return pd.DataFrame(rows, columns=["request", "time_ns", "kind", "tokens", "blocks", "detail"])


def queue_stays(requests: "pd.DataFrame") -> "pd.DataFrame":
    """Every time that a request stood in the queue without having been admitted before, one row each.

    Args:
        requests: `requests.parquet`.

    Returns:
        Columns `request` (row number in `requests`), `queued_ns` and `left_ns` (float; infinite when the run ended
        first), and `batch_grows`: no step was to come before a batch had grown.
    """
    import pandas as pd

    events = history_events(requests)
    queued = (events["kind"] == "queued").to_numpy()
    # Whatever comes next ends the stay; a request that was turned away may leave no event but its end.
    left_ns = events["time_ns"].shift(-1).where(events["request"].shift(-1) == events["request"])[queued]
    request = events["request"].to_numpy(dtype="int64")[queued]
    ended_ns = requests["t_end"].fillna(math.inf).to_numpy(dtype="float64")[request]
    return pd.DataFrame(
        {
            "request": request,
            "queued_ns": events["time_ns"].to_numpy(dtype="float64")[queued],
            "left_ns": left_ns.astype("float64").where(left_ns.notna(), ended_ns).to_numpy(),
            "batch_grows": (events["detail"][queued] == "batch").to_numpy(),
        }
    )


def preemptions(requests: "pd.DataFrame") -> list[Preemption]:
    """Every preemption in a run, in the order of `requests`, its `requests.parquet`."""
    found = []
    columns = (requests[name] for name in ("request_id", "class_name", "history"))
    for request_id, class_name, history in zip(*columns, strict=True):
        events = json.loads(history)
        for event, following in zip_longest(events, events[1:]):
            time_ns, kind, tokens, blocks, detail = event
            if kind == "preempted":
                mode, _, winner = detail.partition(":")
                wait_s = None if following is None else (following[0] - time_ns) / 1e9
                ran_again = following is not None and following[1] == "admitted"
                found.append(
                    Preemption(time_ns, request_id, class_name, mode, tokens, blocks, winner, wait_s, ran_again)
                )
    return found
