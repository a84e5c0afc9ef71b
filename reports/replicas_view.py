"""The replicas of one run beside each other: what a router has made of the load."""

from dataclasses import replace
from typing import TYPE_CHECKING

from reports.format import count, milliseconds, number, percent, token_rate
from reports.result_rows import ResultRow, key, shown
from reports.view import Table
from workloads.metrics import Window, in_window, summarize

if TYPE_CHECKING:
    from workloads.records import RunRecord

_ROWS = (
    ResultRow("Requests", key("requests"), count),
    ResultRow("Completed", key("completed"), count),
    ResultRow("Good requests", key("good"), count, always=False),
    ResultRow("Output tokens", key("output_throughput"), token_rate),
    ResultRow("p50 TTFT", key("p50_ttft_ms"), milliseconds),
    ResultRow("p95 TTFT", key("p95_ttft_ms"), milliseconds),
    ResultRow("p95 TPOT", key("p95_tpot_ms"), milliseconds),
    ResultRow("Mean requests running", key("mean_running"), number),
    ResultRow("Mean requests waiting", key("mean_waiting"), number),
    ResultRow("Mean KV use", key("mean_kv_utilization"), percent),
    ResultRow("Largest KV use", key("max_kv_utilization"), percent),
    ResultRow("Preemptions", key("preemptions"), count),
    ResultRow("Tokens found in the prefix cache", key("cached_tokens"), count, always=False),
    ResultRow("Prefill tokens per decode token", key("prefill_decode_ratio"), number),
    ResultRow("Device idle", key("device_idle_share"), percent),
)


def replicas_table(run: "RunRecord") -> Table | None:
    """What each replica of a run did with its share of the requests; None where there is one engine.

    Raises:
        UserError: a table of the run is damaged.
    """
    number_of = (run.meta.get("device") or {}).get("data_parallel_size", 1)
    bounds = run.meta.get("window") or {}
    if number_of < 2 or bounds.get("start_ns") is None or bounds.get("end_ns") is None:
        return None
    window = Window(bounds["start_ns"], bounds["end_ns"])
    requests, steps = run.request_records(), run.iteration_records()
    columns = []
    for replica in range(number_of):
        its_requests = [request for request in requests if request.replica == replica]
        # As one engine's, so that shares are its own and not parts of all.
        its_steps = [replace(step, replica=None) for step in steps if step.replica == replica]
        scheduled = in_window(its_requests)
        own = {"requests": len(scheduled), "good": sum(bool(request.good) for request in scheduled)}
        columns.append(summarize(its_requests, its_steps, window) | own)
    rows = tuple((row.name, *(row.write(row.read(column)) for column in columns)) for row in shown(_ROWS, columns))
    headers = ("By replica", *map(str, range(number_of)))
    caption = f"The requests scheduled in the window, each where the router ({run.meta['device']['router']}) sent it."
    return Table(headers, rows, numeric=frozenset(range(1, number_of + 1)), caption=caption)
