"""The numbers of a summary that the reports show, each with its name: what decides, and below it what explains."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.format import count, is_known, milliseconds, number, percent, request_rate, token_rate

Summary = Mapping[str, Any]
Read = Callable[[Summary], float | None]


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One number of a summary.

    Attributes:
        read: takes it from a summary.
        write: puts it as text.
        always: show it also where it is 0 or not known everywhere.
        ratio: a comparison shows it as a multiple of the first column's too.
    """

    name: str
    read: Read
    write: Callable[[float | None], str]
    always: bool = True
    ratio: bool = False


def key(name: str) -> Read:
    """Reads one number of a summary by its key."""
    return lambda summary: summary.get(name)


def sum_of(*names: str) -> Read:
    """Reads a sum of those that are known; None when none is."""

    def read(summary: Summary) -> float | None:
        known = [value for name in names if is_known(value := summary.get(name))]
        return sum(known) if known else None

    return read


def shown(rows: Sequence[ResultRow], summaries: Sequence[Summary]) -> list[ResultRow]:
    """Those that have something to say about one of the summaries."""
    return [row for row in rows if row.always or any(row.read(summary) for summary in summaries)]


MAIN_ROWS = (
    ResultRow("Throughput", key("request_throughput"), request_rate),
    ResultRow("Output tokens", key("output_throughput"), token_rate),
    ResultRow("p95 TTFT", key("p95_ttft_ms"), milliseconds),
    ResultRow("p95 TPOT", key("p95_tpot_ms"), milliseconds),
    ResultRow("Mean KV use", key("mean_kv_utilization"), percent),
    ResultRow("Preemptions", key("preemptions"), count),
    ResultRow("Not completed", key("failed"), count, always=False),
    ResultRow("Turned away", sum_of("num_shed", "num_queue_timeouts"), count, always=False),
    ResultRow("Did not end in time", key("num_timeouts"), count),
)
TURNED_AWAY_ROWS = (
    ResultRow("Turned away on arrival", key("num_shed"), count),
    ResultRow("Timed out in the queue", key("num_queue_timeouts"), count),
    ResultRow("Tries turned away", key("num_turned_away"), count, always=False),
    ResultRow("Sent again by clients", key("num_retries"), count, always=False),
)
MORE_ROWS = (
    ResultRow("Output tokens of good requests", key("output_token_goodput"), token_rate),
    ResultRow("p99 TTFT", key("p99_ttft_ms"), milliseconds),
    ResultRow("p99 TPOT", key("p99_tpot_ms"), milliseconds),
    ResultRow("p95 E2E", key("p95_e2el_ms"), milliseconds),
    ResultRow("Completed requests", key("completed"), count),
    *TURNED_AWAY_ROWS,
    ResultRow("Largest KV use", key("max_kv_utilization"), percent),
    ResultRow("Device idle", key("device_idle_share"), percent),
    ResultRow("Prefill tokens per decode token", key("prefill_decode_ratio"), number),
    ResultRow("Recomputed tokens", key("recomputed_tokens"), count),
    ResultRow("Mean requests running", key("mean_running"), number),
    ResultRow("Mean requests waiting", key("mean_waiting"), number),
)
