"""The classes of a workload beside each other, in one run or under several settings."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from reports.format import count, is_known, milliseconds, percent, request_rate, text, token_rate
from reports.result_rows import TURNED_AWAY_ROWS, ResultRow, key, shown
from reports.view import Table
from reports.waited import longest_wait_ms, window_requests

if TYPE_CHECKING:
    from workloads.records import RunRecord

Classes = Mapping[str, Mapping[str, Any]]

_GOODPUT = ResultRow("Goodput", key("request_goodput"), request_rate, always=False)
_ROWS = (
    ResultRow("Priority (lower is more urgent)", key("priority"), text),
    ResultRow("Requests", key("requests"), count),
    ResultRow("Completed", key("completed"), count),
    ResultRow("Good requests", key("good_requests"), count),
    _GOODPUT,
    *TURNED_AWAY_ROWS,
    ResultRow("Did not end in time", key("num_timeouts"), count),
    ResultRow("Preemptions of these requests", key("preemptions"), count),
    ResultRow("of these by swap", key("preemptions_swap"), count),
    ResultRow("Recomputed tokens", key("recomputed_share"), percent),
    ResultRow("Output tokens", key("output_throughput"), token_rate),
    ResultRow("p50 TTFT", key("p50_ttft_ms"), milliseconds),
    ResultRow("p95 TTFT", key("p95_ttft_ms"), milliseconds),
    ResultRow("p95 TPOT", key("p95_tpot_ms"), milliseconds),
    ResultRow("p95 E2E", key("p95_e2el_ms"), milliseconds),
    ResultRow("Longest wait", key("max_wait_ms"), milliseconds),
)
_CAPTION = (
    "Of the requests scheduled in the window, whenever it befell them. Latencies are those of completed requests, the "
    "longest wait is that of any."
)


def class_numbers(classes: Classes, summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The classes of a record, each with its goodput (requests per second of the window; None without an SLO)."""
    duration_s = summary.get("duration")

    def goodput(numbers: Mapping[str, Any]) -> float | None:
        good = numbers.get("good_requests")
        return good / duration_s if is_known(good) and is_known(duration_s) and duration_s > 0 else None

    return {name: {**numbers, "request_goodput": goodput(numbers)} for name, numbers in classes.items()}


def run_classes(run: "RunRecord") -> dict[str, dict[str, Any]]:
    """The same for a run, with the longest wait of each class, which old records lack."""
    found = class_numbers(run.meta["classes"], run.meta["summary"])
    requests = window_requests(run.requests)
    for name, numbers in found.items():
        numbers["max_wait_ms"] = longest_wait_ms(requests[requests["class_name"] == name])
    return found


def classes_table(run: "RunRecord") -> Table | None:
    """What each class of a run got; None where the workload has one class only, since that is the whole run."""
    if len(run.meta["classes"]) < 2:
        return None
    classes = run_classes(run)
    numbers = list(classes.values())
    rows = tuple((row.name, *(row.write(row.read(one)) for one in numbers)) for row in shown(_ROWS, numbers))
    numeric = frozenset(range(1, len(classes) + 1))
    return Table(("By class", *map(text, classes)), rows, numeric=numeric, caption=_CAPTION)


def by_class_table(columns: Sequence[tuple[str, Sequence[Classes]]]) -> Table | None:
    """What each class got under several settings; None where there is one class only.

    Counts are sums over the runs, waits the longest of any, the rest medians.

    Args:
        columns: label, and the classes of each run as `class_numbers` or `run_classes` gives them.
    """
    names = dict.fromkeys(name for _, runs in columns for classes in runs for name in classes)
    if len(names) < 2:
        return None
    rows: list[tuple[str, ...]] = []
    for name in names:
        of_class = [[classes[name] for classes in runs if name in classes] for _, runs in columns]
        rows.append((f"{text(name)}: completed", *(_completed(numbers) for numbers in of_class)))
        for row in TURNED_AWAY_ROWS:
            sums = [_combined(row, numbers, sum) for numbers in of_class]
            if any(sums):
                rows.append((f"{text(name)}: {row.name.lower()}", *map(row.write, sums)))
        for title, row, combine in (
            ("goodput", _GOODPUT, median),
            ("p95 TTFT", ResultRow("", key("p95_ttft_ms"), milliseconds), median),
            ("longest wait", ResultRow("", key("max_wait_ms"), milliseconds), max),
        ):
            values = [_combined(row, numbers, combine) for numbers in of_class]
            if row.always or any(is_known(value) for value in values):
                rows.append((f"{text(name)}: {title}", *map(row.write, values)))
    headers = ("By class", *(label for label, _ in columns))
    return Table(headers, tuple(rows), numeric=frozenset(range(1, len(headers))), caption=_CAPTION)


def _combined(row: ResultRow, runs: Sequence[Mapping[str, Any]], combine: Any) -> float | None:
    known = [value for numbers in runs if is_known(value := row.read(numbers))]
    return combine(known) if known else None


def _completed(runs: Sequence[Mapping[str, Any]]) -> str:
    known = [numbers for numbers in runs if is_known(numbers.get("completed")) and is_known(numbers.get("requests"))]
    if not known:
        return count(None)
    return f"{count(sum(n['completed'] for n in known))} of {count(sum(n['requests'] for n in known))}"


def mostly_missed(classes: Classes) -> list[tuple[str, float]]:
    """(class, share of its requests that were good) of the classes that mostly missed the SLO."""
    shares = [
        (name, good / total)
        for name, numbers in classes.items()
        if is_known(good := numbers.get("good_requests")) and is_known(total := numbers.get("requests")) and total > 0
    ]
    return [(name, share) for name, share in shares if share < 0.5]
