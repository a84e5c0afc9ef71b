"""Who waited, for what, and who held the room: the section on waiting, and the tables that comparisons take from it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reports.classes_view import run_classes
from reports.format import DASH, count, is_known, milliseconds, number, percent, seconds, text
from reports.view import Section, Table
from reports.waited import Flags, had_to_wait, longest_wait_ms, window_requests

if TYPE_CHECKING:
    from reports.blame import Blame
    from workloads.records import RunRecord

# The summary's causes that are the scheduler's, as the reports name them.
CAUSE_NAMES = {
    "seats": "no seat",
    "budget": "no token budget",
    "blocks": "no room in the KV cache",
    "behind_head": "behind the head of the queue",
    "batch": "batch closed or growing",
    "step": "until a step saw it",
}
# The one cause that is not: it adds nothing to the mean wait.
RETRY = "mean_wait_retry_ms"
ALL_REQUESTS = "all"


def waits_section(runs: Sequence[tuple[str, "RunRecord"]]) -> Section:
    """Waiting by cause, per class for one run and per run for several, and whom the last one's waiting is owed to."""
    from reports.wait_chart import wait_chart

    if not runs:
        return Section("waits", "Waiting", text=("No run can be read.",))
    columns = wait_columns(runs[0][1]) if len(runs) == 1 else [(label, *_of_all(run)) for label, run in runs]
    charts = (wait_chart(label, run.iterations, run.requests, run.meta.get("window")) for label, run in runs)
    drawn = tuple(chart for chart in charts if chart is not None)
    lines = [
        "All time from the scheduled arrival to the first admission, and from a preemption to the return, by what kept "
        "the scheduler from admitting more; means over the requests of the window, completed or not."
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
    if len(run.meta["classes"]) < 2:
        return [(ALL_REQUESTS, *_of_all(run))]
    requests = window_requests(run.requests)
    had_to = had_to_wait(requests, run.iterations)
    of_class = [
        (text(name), numbers, _share(had_to[(requests["class_name"] == name).to_numpy()]))
        for name, numbers in run_classes(run).items()
    ]
    return [*of_class, (ALL_REQUESTS, *_of_all(run))]


def _of_all(run: "RunRecord") -> tuple[Mapping[str, Any], float | None]:
    requests = window_requests(run.requests)
    numbers = {**run.meta["summary"], "max_wait_ms": longest_wait_ms(requests)}
    return numbers, _share(had_to_wait(requests, run.iterations))


def _share(flags: Flags) -> float | None:
    return float(flags.mean()) if len(flags) else None


def mean_wait_ms(numbers: Mapping[str, Any]) -> float | None:
    """The mean wait of a summary or a class, over all causes that are the scheduler's; None where that is not known."""
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
        (
            "Longest wait",
            *(milliseconds(numbers.get("max_wait_ms")) for _, numbers, _ in columns),
        ),
        ("Waits after preemptions, in all", *(seconds(numbers.get("preempted_wait_s")) for _, numbers, _ in columns)),
    ]
    if any(numbers.get(RETRY) for _, numbers, _ in columns):
        rows.append(("Clients' pauses before sending again", *(milliseconds(n.get(RETRY)) for _, n, _ in columns)))
    if any(share is not None for _, _, share in columns):
        rows.append(("Requests that had to wait", *(percent(share) for _, _, share in columns)))
    return Table(
        headers=("Waiting", *(label for label, _, _ in columns)),
        rows=tuple(rows),
        numeric=frozenset(range(1, len(columns) + 1)),
        caption="The longest wait is that for the first admission, clients' pauses included. A request had to wait "
        "when the first step after it was queued did not admit it, a growing batch held it, or it was preempted.",
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
        f"{percent(named / found.blocked_s)} of it. Delayed most names heads only; those behind them are one sum.",
        essential=False,
    )
