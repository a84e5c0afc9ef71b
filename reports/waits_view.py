"""Who waited, for what, and who held the room: the section on waiting, and the tables that comparisons take from it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.format import DASH, count, is_known, milliseconds, number, percent, seconds, text
from reports.view import Section, Table

if TYPE_CHECKING:
    import pandas as pd

    from reports.blame import Blame
    from workloads.records import RunRecord

# The summary's causes, as the reports name them.
CAUSE_NAMES = {
    "seats": "no seat",
    "budget": "no token budget",
    "blocks": "no room in the KV cache",
    "behind_head": "behind the head of the queue",
    "batch": "batch closed or growing",
    "step": "step under way on arrival",
}
ALL_REQUESTS = "all"


def waits_section(runs: Sequence[tuple[str, "RunRecord"]]) -> Section:
    """Waiting by cause, per class for one run and per run for several, and whom the last one's waiting is owed to."""
    from reports.wait_chart import wait_chart

    if not runs:
        return Section("waits", "Waiting", text=("No run can be read.",))
    columns = wait_columns(runs[0][1]) if len(runs) == 1 else [(label, *_of_all(run)) for label, run in runs]
    charts = (wait_chart(label, run.iterations, run.meta.get("window")) for label, run in runs)
    drawn = tuple(chart for chart in charts if chart is not None)
    lines = [
        "All time from the scheduled arrival to the first admission, and from a preemption to the return, by what kept "
        "the scheduler from admitting more; means over the requests of the window."
    ]
    if not drawn:
        lines.append("No step left a request waiting.")
    label, last = runs[-1]
    held = blame_table(last, label if len(runs) > 1 else None)
    return Section(
        "waits",
        "Waiting",
        text=tuple(lines),
        tables=(waits_table(columns), *([held] if held else [])),
        charts=drawn,
    )


def wait_columns(run: "RunRecord") -> list[tuple[str, Mapping[str, Any], float | None]]:
    """(label, numbers, share that waited) of each class of a run, and of all together where there are several."""
    classes = run.meta.get("classes") or {}
    if len(classes) < 2:
        return [(ALL_REQUESTS, *_of_all(run))]
    in_window = run.requests[run.requests["phase"] == "window"]
    had_to = had_to_wait(in_window, run.iterations)
    of_class = [
        (text(name), numbers, _share(had_to[(in_window["class_name"] == name).to_numpy()]))
        for name, numbers in classes.items()
    ]
    return [*of_class, (ALL_REQUESTS, run.meta["summary"], _share(had_to))]


def _of_all(run: "RunRecord") -> tuple[Mapping[str, Any], float | None]:
    in_window = run.requests[run.requests["phase"] == "window"]
    return run.meta["summary"], _share(had_to_wait(in_window, run.iterations))


def _share(flags: "np.ndarray[Any, np.dtype[np.bool_]]") -> float | None:
    return float(flags.mean()) if len(flags) else None


def had_to_wait(requests: "pd.DataFrame", iterations: "pd.DataFrame") -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Which requests waited for more than the end of the step under way.

    Those are they which the first step that began after they were sent did not admit, that were preempted, or turned
    away and sent again.
    """
    starts = iterations["t_start"].to_numpy(dtype=np.float64)
    ends = np.append(iterations["t_end"].to_numpy(dtype=np.float64), np.inf)
    sent = requests["t_send"].to_numpy(dtype=np.float64)
    left_queue = requests["t_admit"].fillna(requests["t_end"]).to_numpy(dtype=np.float64)
    # A time that is not known compares as false: a request that was never sent never waited in the queue.
    not_at_once = (left_queue >= ends[np.searchsorted(starts, sent)]) & ~np.isnan(sent)
    return not_at_once | (requests["preemptions"] > 0).to_numpy() | (requests["attempts"] > 1).to_numpy()


def mean_wait_ms(numbers: Mapping[str, Any]) -> float | None:
    """The mean wait of a summary or a class, over all causes; None where that is not known."""
    parts = [numbers.get(f"mean_wait_{cause}_ms") for cause in CAUSE_NAMES]
    return sum(part for part in parts if is_known(part)) if all(map(is_known, parts)) else None


def waits_table(columns: Sequence[tuple[str, Mapping[str, Any], float | None]]) -> Table:
    """Mean wait, its split by cause, and how many waited; one column per (label, numbers, share that waited)."""
    totals = [mean_wait_ms(numbers) for _, numbers, _ in columns]
    rows = [("Mean wait", *(milliseconds(total) for total in totals))]
    for cause, name in CAUSE_NAMES.items():
        parts = [numbers.get(f"mean_wait_{cause}_ms") for _, numbers, _ in columns]
        if any(parts):
            rows.append((name, *(_part(part, total) for part, total in zip(parts, totals, strict=True))))
    rows += [
        ("Longest in the queue, completed", *(milliseconds(numbers.get("max_queue_ms")) for _, numbers, _ in columns)),
        ("Waits after preemptions, in all", *(seconds(numbers.get("preempted_wait_s")) for _, numbers, _ in columns)),
        ("Requests that had to wait", *(percent(share) for _, _, share in columns)),
    ]
    return Table(
        headers=("Waiting", *(label for label, _, _ in columns)),
        rows=tuple(rows),
        numeric=frozenset(range(1, len(columns) + 1)),
        caption="A request had to wait when the first step after its arrival did not admit it, or when it was "
        "preempted or sent again.",
    )


def _part(part_ms: float | None, total_ms: float | None) -> str:
    if not is_known(part_ms) or not total_ms:
        return milliseconds(part_ms)
    return f"{milliseconds(part_ms)} ({percent(part_ms / total_ms)})"


def run_blame(run: "RunRecord") -> "Blame | None":
    """Who held the blocks that others waited for; None where the block size is not known."""
    from reports.blame import blame

    block_size = run.meta["settings"].get("block_size")
    if not is_known(block_size) or block_size < 1:
        return None
    return blame(run.requests, run.iterations, int(block_size), run.meta.get("window"))


def blame_table(run: "RunRecord", label: str | None = None) -> Table | None:
    """The requests that held the most blocks for the longest while others waited; None when nobody waited for any.

    Args:
        label: whose run it is, where there are several.
    """
    found = run_blame(run)
    if found is None or not found.top:
        return None
    rows = tuple(
        (
            text(holder.request_id),
            text(holder.class_name),
            number(holder.block_seconds),
            seconds(holder.delay_s),
            number(holder.behind_request_s),
            ", ".join(f"{text(name)} {seconds(share)}" for name, share in holder.delayed) or DASH,
        )
        for holder in found.top
    )
    named = sum(holder.delay_s for holder in found.top)
    return Table(
        headers=(
            "Held blocks",
            "Class",
            "Block-seconds",
            "Delayed heads by",
            "Others behind, request-s",
            "Delayed most",
        ),
        rows=rows,
        numeric=frozenset((2, 3, 4)),
        caption=f"{'' if label is None else f'Run of the {label}. '}The request at the head of the queue found no room "
        f"for {seconds(found.blocked_s)} in all ({count(found.heads)} requests were that head). At every moment this "
        "time is shared among the running requests by the blocks they held; so is that of the requests behind the "
        f"head. The {count(len(found.top))} listed of {count(found.holders)} holders account for "
        f"{percent(named / found.blocked_s)} of it.",
        essential=False,
    )
