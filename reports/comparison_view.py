"""The report of a comparison: one workload under every value of one setting."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from reports.classes_view import by_class_table, run_classes
from reports.comparison import Column, ComparisonFolder
from reports.comparison_headline import comparison_headline
from reports.contrast import ENOUGH
from reports.format import (
    DASH,
    count,
    interval,
    is_known,
    milliseconds,
    number,
    percent,
    request_rate,
    seconds,
    size,
    text,
    token_rate,
)
from reports.result_rows import TURNED_AWAY_ROWS, Read, ResultRow, key, shown, sum_of
from reports.sections import (
    CLOSED_LOOP,
    latency_section,
    repeat_section,
    slo_table,
    subtitle,
    trace_section,
    validity_table,
)
from reports.settings_view import settings_tables
from reports.view import Command, Fact, Report, Section, Table
from reports.waited import had_to_wait, longest_wait_ms, window_requests
from reports.waits_view import mean_wait_ms, run_blame, waits_table
from workloads.records import RunRecord

_SUSTAINED = (
    "Sustained is what clients received within the window, at most what its requests asked for. The other rates count "
    "its requests whenever they ended, so they do not show an engine that fell behind."
)
_ENGINE_CAPTION = "The rows up to recomputed tokens are of the window's steps, the others of its requests."

_GOODPUT = ResultRow("Goodput", key("request_goodput"), request_rate, ratio=True)
_OUTPUT = ResultRow("Output sustained", key("sustained_throughput"), token_rate, ratio=True)
_THROUGHPUT = (
    ResultRow("Requests", key("request_throughput"), request_rate, ratio=True),
    _OUTPUT,
    ResultRow("Output tokens", key("output_throughput"), token_rate, ratio=True),
)
_LATENCY = (
    *(ResultRow(f"p{q} TTFT", key(f"p{q}_ttft_ms"), milliseconds, ratio=True) for q in (50, 95, 99)),
    ResultRow("p95 TPOT", key("p95_tpot_ms"), milliseconds, ratio=True),
    *(ResultRow(f"p{q} E2E", key(f"p{q}_e2el_ms"), milliseconds, ratio=True) for q in (50, 95, 99)),
    ResultRow("Mean wait", mean_wait_ms, milliseconds, ratio=True),
)
_ENGINE = (
    ResultRow("Mean KV use", key("mean_kv_utilization"), percent),
    ResultRow("Preemptions by recompute", key("preemptions_recompute"), count),
    ResultRow("Preemptions by swap", key("preemptions_swap"), count),
    ResultRow("Swapped, both ways", sum_of("swapped_out_bytes", "swapped_in_bytes"), size),
    ResultRow("Recomputed tokens", key("recomputed_share"), percent),
    *TURNED_AWAY_ROWS,
    ResultRow("Not completed, for any reason", key("failed"), count),
)


def comparison_report(folder: ComparisonFolder) -> Report:
    """Everything there is to say about a comparison, with what is missing on disk said so."""
    comparison = folder.comparison
    option = text(comparison["option"])
    firsts = [(column.label, column.runs[0]) for column in folder.measured]
    named = [(f"{label} run", run) for label, run in firsts]
    bounds = next((b for _, run in firsts if (b := (run.meta.get("verdict") or {}).get("bounds"))), ())
    command = (Command("Repeat the comparison", (text(comparison["command"]),)),) if comparison["command"] else ()
    repeat = repeat_section(comparison, command)
    settings = settings_tables([("in every run", comparison["settings"])])
    return Report(
        title=f"tune compare: {option}",
        subtitle=subtitle(comparison),
        headline=comparison_headline(folder),
        facts=_facts(folder),
        commands=(),
        sections=(
            _validity(folder),
            _attainment(folder),
            Section("comparison", f"By {option}", text=(_source(folder),), tables=comparison_tables(folder)),
            _waits(folder),
            trace_section(named),
            latency_section(firsts, bounds),
            Section(
                repeat.key, repeat.title, repeat.text, tables=(*settings, *repeat.tables), commands=repeat.commands
            ),
        ),
    )


def comparison_tables(folder: ComparisonFolder) -> tuple[Table, ...]:
    """Throughput, latency, what the engine did, and the classes, one column per value."""
    columns = folder.columns
    throughput = (_GOODPUT, *_THROUGHPUT) if folder.comparison["slo"] else _THROUGHPUT
    tables = [
        replace(_table("Throughput", columns, throughput), caption=_SUSTAINED),
        _table("Latency", columns, _LATENCY),
        replace(_table("In the engine", columns, _ENGINE), caption=_ENGINE_CAPTION),
    ]
    classes = by_class_table([(column.label, [run_classes(run) for run in column.runs]) for column in columns])
    return (*tables, classes) if classes else tuple(tables)


def spread(column: Column, read: Read) -> tuple[float, ...]:
    """A number of every run of a value that has it, in ascending order."""
    return tuple(sorted(value for summary in column.summaries if is_known(value := read(summary))))


def _table(title: str, columns: Sequence[Column], rows: Sequence[ResultRow]) -> Table:
    lines = []
    for row in shown(rows, [summary for column in columns for summary in column.summaries]):
        known = [spread(column, row.read) for column in columns]
        middles = [median(values) if values else None for values in known]
        cells = [row.write(middle) for middle in middles]
        if row.ratio:
            cells = [cells[0], *(c + _ratio(m, middles[0]) for c, m in zip(cells[1:], middles[1:], strict=True))]
        lines.append((row.name, *cells))
        if any(len(values) > 1 and values[0] != values[-1] for values in known):
            ranges = (interval(v[0], v[-1], row.write) if len(v) > 1 else DASH for v in known)
            lines.append(("range of the runs", *ranges))
    return Table((title, *_labels(columns)), tuple(lines), numeric=frozenset(range(1, len(columns) + 1)))


def _ratio(value: float | None, first: float | None) -> str:
    if not is_known(value) or not is_known(first) or first <= 0:
        return ""
    ratio = value / first
    return f" (×{number(ratio) if ratio >= 10 else format(ratio, '.2f')})"


def _labels(columns: Sequence[Column]) -> list[str]:
    return [column.label for column in columns]


def _source(folder: ComparisonFolder) -> str:
    repeats = folder.comparison["repeats"]
    each = "One run per value" if repeats == 1 else f"The median of up to {count(repeats)} runs per value"
    first = folder.columns[0].label if folder.columns else DASH
    pairs = " Intervals are paired by repeat and hold for all pairs of values together." if repeats >= ENOUGH else ""
    return f"{each}; every value gets the same arrivals and prompts. In brackets: the multiple of {first}.{pairs}"


def _facts(folder: ComparisonFolder) -> tuple[Fact, ...]:
    rate = folder.comparison["rate"]
    offered = Fact("Offered rate", CLOSED_LOOP if rate is None else request_rate(rate), "the same for every value")
    of_values = []
    for column in folder.measured:
        goodput, output = (median(v) if (v := spread(column, row.read)) else None for row in (_GOODPUT, _OUTPUT))
        if goodput is None:
            of_values.append(Fact(column.label, token_rate(output), "output"))
        else:
            of_values.append(Fact(column.label, request_rate(goodput), f"goodput; output {token_rate(output)}"))
    return (offered, *of_values)


def _validity(folder: ComparisonFolder) -> Section:
    total = len(folder.runs) + folder.invalid
    lines = [f"{count(total)} runs can be read, {count(folder.invalid)} of them are not valid."]
    left_out = [_run_label(folder, column, repeat) for column in folder.columns for repeat, _ in column.invalid]
    if left_out:
        lines.append(f"Left out of all numbers, since they are not valid: {'; '.join(left_out)}.")
    lines += [text(problem) for problem in folder.problems]
    table = validity_table([(label, run.meta) for label, run in _labelled_runs(folder, invalid=True)])
    return Section("validity", "Validity", text=tuple(lines), tables=(table,) if table else ())


def _attainment(folder: ComparisonFolder) -> Section:
    table = slo_table([(label, run.meta.get("verdict")) for label, run in _labelled_runs(folder)])
    lines = () if table else ("No SLO was given.",)
    return Section("slo", "SLO attainment", text=lines, tables=(table,) if table else ())


def _labelled_runs(folder: ComparisonFolder, *, invalid: bool = False) -> list[tuple[str, RunRecord]]:
    """Every valid run by its value, and on demand those that are not."""
    found = []
    for column in folder.columns:
        runs = [*zip(column.repeats, column.runs, strict=True), *(column.invalid if invalid else ())]
        found += [(_run_label(folder, column, repeat), run) for repeat, run in sorted(runs, key=lambda pair: pair[0])]
    return found


def _run_label(folder: ComparisonFolder, column: Column, repeat: int) -> str:
    return f"{column.label}, run {repeat + 1}" if folder.comparison["repeats"] > 1 else column.label


def _waits(folder: ComparisonFolder) -> Section:
    """Waiting by cause as means over the runs, so that the parts add up, and the room that was waited for."""
    from reports.wait_chart import wait_chart

    measured = folder.measured
    columns = [(column.label, _mean_waits(column), _mean_share_waited(column)) for column in measured]
    drawn = [
        chart
        for column in measured
        for run in column.runs[:1]
        if (chart := wait_chart(f"{column.label} run", run.iterations, run.requests, run.meta.get("window")))
    ]
    tables = (waits_table(columns), _delays_table(measured)) if measured else ()
    return Section("waits", "Waiting", text=("Means over the runs of a value.",), tables=tables, charts=tuple(drawn))


def _mean_waits(column: Column) -> dict[str, float]:
    summaries = column.summaries
    names = [name for name in summaries[0] if name.startswith("mean_wait_")]
    means = {name: fmean(values) for name in (*names, "preempted_wait_s") if (values := _known(summaries, name))}
    longest = [wait for run in column.runs if is_known(wait := longest_wait_ms(window_requests(run.requests)))]
    return means | ({"max_wait_ms": max(longest)} if longest else {})


def _known(summaries: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [value for summary in summaries if is_known(value := summary.get(name))]


def _mean_share_waited(column: Column) -> float | None:
    shares = []
    for run in column.runs:
        requests = window_requests(run.requests)
        if len(requests):
            shares.append(float(had_to_wait(requests, run.iterations).mean()))
    return fmean(shares) if shares else None


def _delays_table(columns: Sequence[Column]) -> Table:
    found = [run_blame(column.runs[0]) for column in columns]
    rows = (
        ("Heads of the queue delayed", *(count(b.heads if b else None) for b in found)),
        ("for, in all", *(seconds(b.blocked_s if b else None) for b in found)),
        ("Requests that held the blocks", *(count(b.holders if b else None) for b in found)),
    )
    return Table(
        headers=("Delays for want of KV blocks", *_labels(columns)),
        rows=rows,
        numeric=frozenset(range(1, len(columns) + 1)),
        caption="In the first run of each value; its own report names the requests.",
        essential=False,
    )
