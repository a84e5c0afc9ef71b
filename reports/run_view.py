"""The report of one run."""

from collections.abc import Mapping
from typing import Any

from reports.classes_view import classes_table
from reports.commands import bench_command, vllm_flags
from reports.format import count, milliseconds, request_rate, text, token_rate
from reports.headline import run_headline
from reports.preemption_view import preemptions_section
from reports.replicas_view import replicas_table
from reports.result_rows import MAIN_ROWS, MORE_ROWS, shown
from reports.sections import (
    CLOSED_LOOP,
    diagnosis_section,
    latency_section,
    latency_table,
    repeat_section,
    slo_table,
    subtitle,
    trace_section,
    validity_table,
)
from reports.settings_view import settings_tables
from reports.view import Fact, Report, Section, Table
from reports.waits_view import waits_section
from workloads.records import RunRecord


def run_report(record: RunRecord) -> Report:
    """Everything there is to say about a run.

    Raises:
        UserError: one of its tables is damaged.
    """
    meta = record.meta
    runs = [("run", record)]
    command = bench_command(meta, meta["settings"], meta.get("rate"))
    return Report(
        title="tune bench: one run",
        subtitle=subtitle(meta),
        headline=run_headline(meta),
        facts=run_facts(meta),
        commands=(vllm_flags(meta["settings"], meta),),
        sections=(
            validity_section(meta),
            attainment_section(meta),
            Section("numbers", "Results", tables=run_tables(record)),
            trace_section(runs),
            waits_section(runs),
            preemptions_section(runs),
            latency_section(runs, (meta.get("verdict") or {}).get("bounds") or ()),
            diagnosis_section(runs),
            repeat_section(meta, (command,)),
        ),
    )


def run_facts(meta: Mapping[str, Any]) -> tuple[Fact, ...]:
    """The numbers for the top of the page."""
    summary = meta["summary"]
    asked = CLOSED_LOOP if meta.get("rate") is None else f"offered {request_rate(meta['rate'])}"
    window = meta.get("window") or {}
    return (
        Fact("Goodput", request_rate(summary.get("request_goodput")), asked),
        Fact("p95 TTFT", milliseconds(summary.get("p95_ttft_ms")), _bound_text(meta, "ttft")),
        Fact("p95 TPOT", milliseconds(summary.get("p95_tpot_ms")), _bound_text(meta, "tpot")),
        Fact("Output", token_rate(summary.get("output_throughput"))),
        Fact("Requests", count(window.get("requests")), "scheduled in the measured window"),
    )


def run_tables(record: RunRecord) -> tuple[Table, ...]:
    """Settings, numbers and latencies of a run, its classes and its replicas.

    Raises:
        UserError: one of its tables is damaged.
    """
    meta = record.meta
    summary = meta["summary"]
    rate = CLOSED_LOOP if meta.get("rate") is None else request_rate(meta["rate"])
    goodput = request_rate(summary.get("request_goodput"))
    main = tuple((row.name, row.write(row.read(summary))) for row in shown(MAIN_ROWS, [summary]))
    more = tuple((row.name, row.write(row.read(summary))) for row in shown(MORE_ROWS, [summary]))
    parts = (classes_table(record), replicas_table(record))
    return (
        *settings_tables([("Value", meta["settings"])]),
        Table(("Result", "Value"), (("Offered rate", rate), ("Goodput", goodput), *main), numeric=frozenset((1,))),
        Table(("More results", "Value"), more, numeric=frozenset((1,)), essential=False),
        latency_table(summary),
        *(table for table in parts if table is not None),
    )


def validity_section(meta: Mapping[str, Any]) -> Section:
    table = validity_table([("run", meta)])
    validity = meta.get("validity") or {}
    if validity.get("valid") is None:
        line = "The validity of this run was not checked."
    else:
        checks = validity.get("checks") or ()
        failed = [f"{text(c.get('name'))} ({text(c.get('detail'))})" for c in checks if not c.get("ok")]
        line = f"{'Valid' if validity['valid'] else 'Not valid'}: {count(len(checks) - len(failed))} of "
        line += f"{count(len(checks))} checks passed" + (f"; not {'; '.join(failed)}." if failed else ".")
    return Section("validity", "Validity", text=(line,), tables=(table,) if table else ())


def attainment_section(meta: Mapping[str, Any]) -> Section:
    table = slo_table([("run", meta.get("verdict"))])
    return Section(
        "slo", "SLO attainment", text=() if table else ("No SLO was given.",), tables=(table,) if table else ()
    )


def _bound_text(meta: Mapping[str, Any], metric: str) -> str:
    bounds = (meta.get("verdict") or {}).get("bounds") or ()
    return ", ".join(text(bound.get("text")) for bound in bounds if bound.get("metric") == metric)
