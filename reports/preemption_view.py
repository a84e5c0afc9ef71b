"""Preemptions: how many of each kind, what they cost, and whom they made wait longest."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reports.format import DASH, count, percent, seconds, size, text
from reports.histories import preemptions
from reports.view import Section, Table

if TYPE_CHECKING:
    from workloads.records import RunRecord

MAX_VICTIMS = 10
NO_WINNER = "itself: no room left"

# The two populations: what the window's steps did, whomever they served, and what befell the window's requests.
_STEPS, _REQUESTS = "steps", "requests"
_TOTALS = (
    ("Preempted by recompute", _STEPS, "preemptions_recompute", count),
    ("Preempted by swap", _STEPS, "preemptions_swap", count),
    ("Blocks swapped out", _STEPS, "swapped_out_blocks", count),
    ("Bytes swapped out", _STEPS, "swapped_out_bytes", size),
    ("Blocks swapped in", _STEPS, "swapped_in_blocks", count),
    ("Bytes swapped in", _STEPS, "swapped_in_bytes", size),
    ("Recomputed tokens", _STEPS, "recomputed_tokens", count),
    ("Share of all computed tokens", _STEPS, "recomputed_share", percent),
    ("Waits they caused, in all", _REQUESTS, "preempted_wait_s", seconds),
)


def preemptions_section(runs: Sequence[tuple[str, "RunRecord"]]) -> Section:
    """Counts and costs of every run, and the longest waits that preemptions caused in the last."""
    title = "Preemptions"
    if not any(run.meta["summary"].get("preemptions") for _, run in runs):
        return Section("preemptions", title, text=("No running request had to give up its blocks.",) if runs else ())
    summaries = [(label, run.meta["summary"]) for label, run in runs]
    label, last = runs[-1]
    longest = longest_waits(last, label if len(runs) > 1 else None)
    tables = (totals_table(summaries), *([longest] if longest else []))
    return Section("preemptions", title, tables=tables)


def totals_table(summaries: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """Preemptions by kind, swap traffic and work done twice, one column per (label, summary)."""
    rows = tuple(
        (name, population, *(write(summary.get(key)) for _, summary in summaries))
        for name, population, key, write in _TOTALS
    )
    return Table(
        headers=("Preemptions", "Window's", *(label for label, _ in summaries)),
        rows=rows,
        numeric=frozenset(range(2, len(summaries) + 2)),
        caption="Of the steps that began in the measured window, whichever requests they served; or of the requests "
        "scheduled in it, whenever that befell them.",
        essential=False,
    )


def longest_waits(run: "RunRecord", label: str | None = None) -> Table | None:
    """The preemptions of the window whose victims waited longest; None when there was none.

    Args:
        label: whose run it is, where there are several.
    """
    found = preemptions(run.requests)
    window = run.meta.get("window") or {}
    start_ns, end_ns = window.get("start_ns"), window.get("end_ns")
    if start_ns is not None and end_ns is not None:
        found = [lost for lost in found if start_ns <= lost.time_ns < end_ns]
    if not found:
        return None
    longest = sorted(found, key=lambda lost: -1.0 if lost.wait_s is None else lost.wait_s, reverse=True)[:MAX_VICTIMS]
    origin_ns = int(run.iterations["t_start"].iloc[0])
    rows = tuple(
        (
            seconds((lost.time_ns - origin_ns) / 1e9),
            text(lost.request_id),
            text(lost.class_name),
            text(lost.mode),
            count(lost.tokens),
            count(lost.blocks),
            text(lost.winner) if lost.winner else NO_WINNER,
            seconds(lost.wait_s) + ("" if lost.ran_again or lost.wait_s is None else ", then ended"),
        )
        for lost in longest
    )
    prefix = "" if label is None else f"Run of the {label}. "
    return Table(
        headers=("When", "Victim", "Class", "Kind", "Computed tokens", "Blocks given up", "Made room for", "Waited"),
        rows=rows,
        numeric=frozenset((0, 4, 5)),
        caption=f"{prefix}The {count(len(rows))} longest waits of the {count(len(found))} preemptions in the measured "
        "window, whenever their requests came; seconds since the first step. Tokens are those computed by then: "
        "recompute loses them, swap keeps them in host memory. The wait lasts until the victim runs again; "
        f"{DASH} where the run ended first.",
        essential=False,
    )
