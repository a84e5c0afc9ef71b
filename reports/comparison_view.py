"""The report of a comparison: one workload under every value of one setting."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from reports.classes_view import class_goodput
from reports.comparison import Column, ComparisonFolder
from reports.comparison_headline import comparison_headline
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
from reports.waits_view import had_to_wait, mean_wait_ms, run_blame, waits_table
from workloads.records import RunRecord

# Take a number from a summary; from a class's numbers and the summary beside them.
Value = Callable[[Mapping[str, Any]], float | None]
OfClass = Callable[[Mapping[str, Any], Mapping[str, Any]], float | None]

_SUSTAINED = (
    "Sustained is what clients received within the window, at most the output of the requests scheduled in it. The "
    "other rates count those requests whenever they ended, so they do not show an engine that fell behind."
)


@dataclass(frozen=True, slots=True)
class _Row:
    """One number of a run's summary, compared.

    Attributes:
        read: takes it from a summary.
        ratio: show it as a multiple of the first column's too.
    """

    name: str
    read: Value
    write: Callable[[float | None], str]
    ratio: bool = False


def _key(key: str) -> Value:
    return lambda summary: summary.get(key)


def _swapped_bytes(summary: Mapping[str, Any]) -> float | None:
    both = summary.get("swapped_out_bytes"), summary.get("swapped_in_bytes")
    return sum(value for value in both if is_known(value)) if any(map(is_known, both)) else None


_GOODPUT = _Row("Goodput", _key("request_goodput"), request_rate, ratio=True)
_THROUGHPUT = (
    _Row("Requests", _key("request_throughput"), request_rate, ratio=True),
    _Row("Output sustained", _key("sustained_throughput"), token_rate, ratio=True),
    _Row("Output tokens", _key("output_throughput"), token_rate, ratio=True),
)
_LATENCY = (
    *(_Row(f"p{q} TTFT", _key(f"p{q}_ttft_ms"), milliseconds, ratio=True) for q in (50, 95, 99)),
    _Row("p95 TPOT", _key("p95_tpot_ms"), milliseconds, ratio=True),
    *(_Row(f"p{q} E2E", _key(f"p{q}_e2el_ms"), milliseconds, ratio=True) for q in (50, 95, 99)),
    _Row("Mean wait", mean_wait_ms, milliseconds, ratio=True),
)
_ENGINE = (
    _Row("Mean KV use", _key("mean_kv_utilization"), percent),
    _Row("Preemptions by recompute", _key("preemptions_recompute"), count),
    _Row("Preemptions by swap", _key("preemptions_swap"), count),
    _Row("Swapped, both ways", _swapped_bytes, size),
    _Row("Recomputed tokens", _key("recomputed_share"), percent),
    _Row("Turned away on arrival", _key("num_shed"), count),
    _Row("Timed out in the queue", _key("num_queue_timeouts"), count),
    _Row("Not completed, for any reason", _key("failed"), count),
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
    throughput = (*_THROUGHPUT, _GOODPUT) if folder.comparison["slo"] else _THROUGHPUT
    tables = [
        replace(_table("Throughput", columns, throughput), caption=_SUSTAINED),
        _table("Latency", columns, _LATENCY),
        _table("In the engine", columns, _ENGINE),
    ]
    classes = _classes_table(folder)
    return (*tables, classes) if classes else tuple(tables)


def spread(column: Column, read: Value) -> tuple[float, ...]:
    """A number of every run of a value that has it, in ascending order."""
    return tuple(sorted(value for summary in column.summaries if is_known(value := read(summary))))


def _table(title: str, columns: Sequence[Column], rows: Sequence[_Row]) -> Table:
    lines = []
    for row in rows:
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


def _classes_table(folder: ComparisonFolder) -> Table | None:
    names = dict.fromkeys(name for run in folder.runs for name in run.meta["classes"])
    if len(names) < 2:
        return None

    def line(title: str, name: str, read: OfClass, write: Callable[[float | None], str]) -> tuple[str, ...]:
        cells = []
        for column in folder.columns:
            metas = [run.meta for run in column.runs]
            values = [read(meta["classes"].get(name) or {}, meta["summary"]) for meta in metas]
            known = [value for value in values if is_known(value)]
            cells.append(write(median(known) if known else None))
        return (title, *cells)

    rows = []
    for name in names:
        rows.append(
            line(f"{text(name)}: p95 TTFT", name, lambda of_class, _: of_class.get("p95_ttft_ms"), milliseconds)
        )
        rows.append(
            line(f"{text(name)}: longest wait", name, lambda of_class, _: of_class.get("max_queue_ms"), milliseconds)
        )
        if folder.comparison["slo"]:
            rows.append(line(f"{text(name)}: goodput", name, class_goodput, request_rate))
    headers = ("By class", *_labels(folder.columns))
    return Table(headers, tuple(rows), numeric=frozenset(range(1, len(headers))))


def _source(folder: ComparisonFolder) -> str:
    repeats = folder.comparison["repeats"]
    each = "One run per value" if repeats == 1 else f"The median of up to {count(repeats)} runs per value"
    first = folder.columns[0].label if folder.columns else DASH
    return f"{each}; every value gets the same arrivals and prompts. In brackets: the multiple of {first}."


def _facts(folder: ComparisonFolder) -> tuple[Fact, ...]:
    rate = folder.comparison["rate"]
    offered = Fact("Offered rate", CLOSED_LOOP if rate is None else request_rate(rate), "the same for every value")
    outputs = [
        Fact(column.label, token_rate(median(values)), "output")
        for column in folder.columns
        if (values := spread(column, _key("sustained_throughput")))
    ]
    return (offered, *outputs)


def _validity(folder: ComparisonFolder) -> Section:
    invalid = [run for run in folder.runs if (run.meta.get("validity") or {}).get("valid") is False]
    lines = [f"{count(len(folder.runs))} runs can be read, {count(len(invalid))} of them are not valid."]
    lines += [text(problem) for problem in folder.problems]
    table = validity_table([(label, run.meta) for label, run in _labelled_runs(folder)])
    return Section("validity", "Validity", text=tuple(lines), tables=(table,) if table else ())


def _attainment(folder: ComparisonFolder) -> Section:
    table = slo_table([(label, run.meta.get("verdict")) for label, run in _labelled_runs(folder)])
    lines = () if table else ("No SLO was given.",)
    return Section("slo", "SLO attainment", text=lines, tables=(table,) if table else ())


def _labelled_runs(folder: ComparisonFolder) -> list[tuple[str, RunRecord]]:
    """Every run by its value, with its number where a value has several."""
    several = folder.comparison["repeats"] > 1
    return [
        (f"{column.label}, run {i}" if several else column.label, run)
        for column in folder.columns
        for i, run in enumerate(column.runs, start=1)
    ]


def _waits(folder: ComparisonFolder) -> Section:
    """Waiting by cause as means over the runs, so that the parts add up, and the room that was waited for."""
    from reports.wait_chart import wait_chart

    measured = folder.measured
    columns = [(column.label, _mean_waits(column), _mean_share_waited(column)) for column in measured]
    drawn = [
        chart
        for column in measured
        if (chart := wait_chart(f"{column.label} run", column.runs[0].iterations, column.runs[0].meta.get("window")))
    ]
    tables = (waits_table(columns), _delays_table(measured)) if measured else ()
    return Section("waits", "Waiting", text=("Means over the runs of a value.",), tables=tables, charts=tuple(drawn))


def _mean_waits(column: Column) -> dict[str, float]:
    summaries = column.summaries
    keys = [key for key in summaries[0] if key.startswith("mean_wait_")]
    means = {key: fmean(values) for key in (*keys, "preempted_wait_s") if (values := _known(summaries, key))}
    longest = _known(summaries, "max_queue_ms")
    return means | ({"max_queue_ms": max(longest)} if longest else {})


def _known(summaries: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [value for summary in summaries if is_known(value := summary.get(key))]


def _mean_share_waited(column: Column) -> float | None:
    shares = []
    for run in column.runs:
        requests = run.requests[run.requests["phase"] == "window"]
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
