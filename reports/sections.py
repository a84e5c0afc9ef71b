"""Parts that the reports of a run, a study and a comparison have in common."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reports.commands import WORKLOAD_FILE
from reports.format import (
    DASH,
    attained_percent,
    attained_range,
    is_known,
    milliseconds,
    number,
    required_percent,
    seconds,
    size,
    text,
)
from reports.view import Command, Finding, Section, Table
from reports.warm_start import warm_start_text

if TYPE_CHECKING:
    from workloads.records import RunRecord

CLOSED_LOOP = "closed loop"

VERDICT_MARKS = {"feasible": "✓ feasible", "infeasible": "✗ infeasible", "undecided": "? undecided"}
# A trial goes by the point estimate, a verdict by the interval: they must not read alike.
TRIAL_MARKS = {
    "complete": "✓ SLO met",
    "infeasible": "✗ SLO missed",
    "behind": "✗ behind",
    "failed": "✗ failed",
    "running": "… running",
}


def verdict_mark(state: object) -> str:
    """A verdict as a word with a sign before it, so that it reads without colour too."""
    return VERDICT_MARKS.get(str(state), text(state))


def trial_mark(state: object) -> str:
    """The state of a trial, likewise."""
    return TRIAL_MARKS.get(str(state), text(state))


def slo_table(verdicts: Sequence[tuple[str, Mapping[str, Any] | None]]) -> Table | None:
    """Every bound of every verdict, (whose, verdict); None when there is no bound."""
    rows = tuple(
        (
            label,
            text(bound.get("text")),
            milliseconds(bound.get("observed_ms")),
            attained_percent(bound.get("met_share")),
            attained_range(bound.get("share_low"), bound.get("share_high")),
            required_percent(bound.get("required_share")),
            verdict_mark(bound.get("state")),
        )
        for label, verdict in verdicts
        for bound in (verdict or {}).get("bounds") or ()
    )
    if not rows:
        return None
    return Table(
        headers=("Settings", "Bound", "Observed", "Met by", "95% interval", "Needed", "Verdict"),
        rows=rows,
        numeric=frozenset((2, 3, 4, 5)),
        caption="Of the requests scheduled in the window; failed and unfinished ones count as misses. Observed is "
        "the smallest value that the needed share does not exceed (the results' percentiles interpolate), "
        f"{DASH} where that is a request never answered.",
    )


def validity_table(runs: Sequence[tuple[str, Mapping[str, Any]]]) -> Table | None:
    """Every check of the runs given as (label, run.json); None when nothing was checked."""
    rows = [
        (
            label,
            text(check.get("name")),
            "✓ ok" if check.get("ok") else "✗ not ok",
            _check_value(check.get("value")),
            _check_value(check.get("limit")),
            text(check.get("detail")),
        )
        for label, meta in runs
        for check in (meta.get("validity") or {}).get("checks") or ()
    ]
    if not rows:
        return None
    headers = ("Run", "Check", "Result", "Value", "Limit", "Detail")
    return Table(headers, tuple(rows), numeric=frozenset((3, 4)), essential=False)


def _check_value(value: object) -> str:
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else text(value)


def latency_table(summary: Mapping[str, Any]) -> Table:
    """Quantiles of every latency of one run."""
    metrics = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2el"), ("Queue", "queue"))
    statistics = ("mean", "p50", "p90", "p95", "p99", "max")
    rows = tuple(
        (name, *(milliseconds(summary.get(f"{statistic}_{key}_ms")) for statistic in statistics))
        for name, key in metrics
    )
    return Table(("Latency", *statistics), rows, numeric=frozenset(range(1, len(statistics) + 1)))


def trace_section(runs: Sequence[tuple[str, "RunRecord"]]) -> Section:
    """Steps over time, one chart per run."""
    from reports.trace_chart import trace_chart

    charts = [trace_chart(label, run.iterations, run.meta.get("window")) for label, run in runs]
    drawn = tuple(chart for chart in charts if chart is not None)
    lines = tuple(f"{chart.label.capitalize()}: {chart.note}" for chart in drawn)
    return Section(
        "trace",
        "Inside the engine",
        text=("Drag to zoom, double-click to see all.", *lines) if drawn else ("No step was recorded.",),
        charts=drawn,
    )


def latency_section(runs: Sequence[tuple[str, "RunRecord"]], bounds: Sequence[Mapping[str, Any]]) -> Section:
    """Distributions of the latencies, one curve per run."""
    from reports.charts import latency_charts

    charts = latency_charts([(label, run.request_records()) for label, run in runs], bounds)
    note = "Share of requests at or below a latency. A curve ends below 100% when requests were never answered."
    return Section(
        "latency", "Latency", text=(note if charts else "No request of the window was answered.",), charts=charts
    )


def diagnosis_section(runs: Sequence[tuple[str, "RunRecord"]]) -> Section:
    """What bounds the last of the runs, and the numbers of all beside each other."""
    from reports.diagnosis import findings, indicators
    from reports.run_statistics import first_token_statistics, overtaken, step_statistics

    columns = []
    found: tuple[Finding, ...] = ()
    for _, run in runs:
        steps = step_statistics(run.iterations, run.meta.get("window"), run.meta["settings"])
        requests = run.request_records()
        first_token = first_token_statistics(requests)
        found = findings(steps, first_token, overtaken(requests), run.meta)
        columns.append(indicators(steps, first_token))
    if not columns:
        return Section("diagnosis", "Diagnosis", text=("No run can be read.",))
    names = [name for name, _ in columns[0]]
    rows = tuple((name, *(column[i][1] for column in columns)) for i, name in enumerate(names))
    table = Table(
        ("In the measured window", *(label for label, _ in runs)),
        rows,
        numeric=frozenset(range(1, len(columns) + 1)),
        essential=False,
    )
    return Section(
        "diagnosis",
        "Diagnosis",
        text=(f"Read from the trace of the {runs[-1][0]} run." if len(runs) > 1 else "Read from the run's trace.",),
        findings=found,
        tables=(table,),
    )


def repeat_section(record: Mapping[str, Any], commands: tuple[Command, ...]) -> Section:
    """Everything needed to repeat a run or a study."""
    environment, device = record.get("environment") or {}, record.get("device") or {}
    options = record.get("options") or {}
    rows = [
        ("tune", text(record.get("tool_version"))),
        ("Created", text(record.get("created"))),
        ("Updated", text(record.get("updated"))),
        ("Time spent", seconds(record.get("elapsed_s"))),
        ("Budget", seconds(options.get("budget_s"))),
        ("Strategy", text(options.get("strategy") or options.get("sampler"))),
        ("Warm start from", text(", ".join(map(str, (record.get("warm_start") or {}).get("studies", ()))))),
        ("Seed", text(record.get("seed"))),
        ("SLO", text(record.get("slo"))),
        ("Model", model_text(record["model"])),
        ("Device", text(device.get("name"))),
        ("Tensor parallel", text(device.get("tensor_parallel_size"))),
        ("Replicas", text(device.get("data_parallel_size"))),
        ("Router", text(device.get("router"))),
        ("Device memory", size(device.get("memory_bytes"))),
        ("Driver", text(device.get("driver"))),
        ("Threads", text(device.get("threads"))),
        ("Attention", text(device.get("attention_backend"))),
        ("Python", text(environment.get("python"))),
        ("torch", text(environment.get("torch") or device.get("torch"))),
        ("Platform", text(environment.get("platform"))),
        ("CPU", text(environment.get("cpu"))),
        ("Machine memory", size(environment.get("memory_bytes"))),
        ("Commit", text(environment.get("git_commit"))),
    ]
    known = tuple(row for row in rows if row[1] != DASH)
    essential = ("Seed", "Model", "Device", "tune", "torch", "Commit", "Created")
    line = "; ".join(f"{name} {value}" for name, value in known if name in essential)
    if record.get("workload"):
        spec = json.dumps(record["workload"], ensure_ascii=False, indent=2)
        commands += (Command(f"The workload ({WORKLOAD_FILE})", tuple(text(line) for line in spec.split("\n"))),)
    return Section(
        "repeat",
        "How to repeat it",
        text=(f"{line}.", *([f"A {taken_over}."] if (taken_over := warm_start_text(record.get("warm_start"))) else [])),
        tables=(Table(("What", "Value"), known, essential=False),),
        commands=commands,
    )


def model_text(model: Mapping[str, Any]) -> str:
    """Model, precision and weights on one line."""
    parts = [text(model.get("name")), text(model.get("dtype"))]
    if model.get("kv_cache_dtype"):
        parts.append(f"KV cache in {text(model['kv_cache_dtype'])}")
    if is_known(model.get("parameters")):
        parts.append(f"{number(model['parameters'] / 1e9)} B parameters")
    if model.get("weights") == "random":
        parts.append("random weights")
    return ", ".join(part for part in parts if part != DASH)


def subtitle(record: Mapping[str, Any]) -> str:
    """Model, device, workload, date."""
    workload, device = record.get("workload") or {}, record.get("device") or {}
    name, replicas = text(device.get("name")), device.get("data_parallel_size", 1)
    parts = (
        text(record["model"].get("name")),
        # Real devices have their number in the name.
        f"{replicas} x {name}" if replicas > 1 and name.startswith("sim:") else name,
        text(workload.get("name")),
        text(str(record.get("created") or "")[:10]),
    )
    return " · ".join(part for part in parts if part != DASH)
