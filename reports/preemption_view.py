"""Preemptions: how many of each kind, what they cost, and whom they made wait longest."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reports.format import DASH, count, percent, seconds, size, text
from reports.histories import preemptions
from reports.view import Section, Table

if TYPE_CHECKING:
    from workloads.records import RunRecord

MAX_VICTIMS = 10

_TOTALS = (
    ("Preempted by recompute", "preemptions_recompute", count),
    ("Preempted by swap", "preemptions_swap", count),
    ("Blocks swapped out", "swapped_out_blocks", count),
    ("Bytes swapped out", "swapped_out_bytes", size),
    ("Blocks swapped in", "swapped_in_blocks", count),
    ("Bytes swapped in", "swapped_in_bytes", size),
    ("Recomputed tokens", "recomputed_tokens", count),
    ("Share of all computed tokens", "recomputed_share", percent),
    ("Waits they caused, in all", "preempted_wait_s", seconds),
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
    return Section("preemptions", title, text=("In the measured window.",), tables=tables)


def totals_table(summaries: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """Preemptions by kind, swap traffic and work done twice, one column per (label, summary)."""
    rows = tuple((name, *(write(summary.get(key)) for _, summary in summaries)) for name, key, write in _TOTALS)
    labels = (label for label, _ in summaries)
    return Table(("Preemptions", *labels), rows, numeric=frozenset(range(1, len(summaries) + 1)), essential=False)


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
            text(lost.winner),
            seconds(lost.wait_s) + ("" if lost.ran_again or lost.wait_s is None else ", then ended"),
        )
        for lost in longest
    )
    prefix = "" if label is None else f"Run of the {label}. "
    return Table(
        headers=("When", "Victim", "Class", "Kind", "Computed tokens", "Blocks given up", "Made room for", "Waited"),
        rows=rows,
        numeric=frozenset((0, 4, 5)),
        caption=f"{prefix}The {count(len(rows))} longest waits of {count(len(found))} preemptions, seconds since the "
        "first step. Tokens are those computed by then: recompute loses them, swap keeps them in host memory. The wait "
        f"lasts until the victim runs again; {DASH} where the run ended first.",
        essential=False,
    )
