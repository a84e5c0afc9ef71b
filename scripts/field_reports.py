#!/usr/bin/env python
"""Two reports from the field, replayed step by step on simulated cards, and what `tune` finds for each.

    a100   a 7B model on one 80 GB card: memory share, seats, token budget, chunk
    a10    Qwen2.5-7B on one 24 GB card: memory share, seats (with a knee), token budget, prefix caching

Prints Markdown. Everything in it is simulated, and the same at every call; docs/field_reports.md says how to read it.

Usage: field_reports.py [--only NAME ...] [--window 180] [--trials 12] [--out FILE]
"""

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ is None and str(Path(__file__).resolve().parent.parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import yaml

from engine.errors import UserError
from reports import format as text
from reports.settings import assignment
from scripts.field_cases import REPORTS, Report, Row, title, written
from tuner.arguments import TuneArguments
from tuner.cli.tune import run_study
from tuner.settings import Settings
from tuner.store import StudyStore
from tuner.targets.bundled import BundledTarget, Load, Measured, TargetOptions
from workloads.metrics import NS_PER_MS, e2e_ns, in_window
from workloads.records import write_atomic

MODEL = "random:qwen2.5-7b"
SEED = 0
WARMUP_S = 60.0
DRAIN_S = 600.0
# After how long a client gives up; the reports do not say.
CLIENT_TIMEOUT_S = 30.0


def figures(measured: Measured) -> dict[str, float | None]:
    """The figures of `field_cases.COLUMNS` of a run; times in milliseconds, shares from 0 to 1."""
    summary, requests = measured.meta["summary"], in_window(measured.requests)
    first_ms = [
        (r.t_first - r.t_admit) / NS_PER_MS for r in requests if r.t_first is not None and r.t_admit is not None
    ]
    late = sum(r.status != "ok" or (e2e_ns(r) or 0) > CLIENT_TIMEOUT_S * 1e9 for r in requests)
    return {
        "tokens_s": summary["output_throughput"],
        "requests_min": None if (rate := summary["request_throughput"]) is None else rate * 60,
        "mean_ttft": summary["mean_ttft_ms"],
        "p95_ttft": summary["p95_ttft_ms"],
        "p99_ttft": summary["p99_ttft_ms"],
        "p95_first": float(np.percentile(first_ms, 95)) if first_ms else None,
        "p95_tpot": summary["p95_tpot_ms"],
        "p99_itl": summary["p99_itl_ms"],
        "kv": summary["mean_kv_utilization"],
        "timeouts": late / len(requests) if requests else None,
        "hits": sum(r.cached_tokens for r in requests) / sum(r.prompt_tokens for r in requests) if requests else None,
    }


def measure(report: Report, window_s: float) -> tuple[Mapping[str, Row], list[str]]:
    """Every step under every load.

    Returns:
        Figures by step, and what is to be said against single runs.
    """
    rows: dict[str, dict[str, float | None]] = {step: {} for step in report.steps}
    doubts = []
    for offered in report.loads:
        spec = report.spec(offered.arrival, offered.name)
        target = BundledTarget(TargetOptions(MODEL, report.device), spec, report.start)
        load = Load(offered.rate, SEED, WARMUP_S, window_s, DRAIN_S)
        for step in report.steps:
            measured = target.measure(report.settings(step), load, None, stop_when_settled=False)
            rows[step] |= {f"{offered.name} {name}": value for name, value in figures(measured).items()}
            checks = measured.meta["validity"]["checks"]
            doubts += [f"{step}, {offered.name}: {check['detail']}" for check in checks if not check["ok"]]
            print(f"{report.device} {step}, {offered.name}: measured", file=sys.stderr)
    return rows, doubts


def study(report: Report, slo: str, trials: int) -> str:
    """What `tune` finds when asked for an objective, from the report's start, in a sentence or two."""
    plain = Settings().to_dict()
    start = [assignment(name, value) for name, value in report.start.to_dict().items() if value != plain[name]]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        workload = Path(folder) / "workload.yaml"
        workload.write_text(yaml.safe_dump(report.spec(report.study_arrival, "field").to_dict()))
        arguments = TuneArguments(
            slo=[slo],
            workload=str(workload),
            model=MODEL,
            device=report.device,
            set=start,
            search=list(report.search),
            trials=trials,
            seed=SEED,
        )
        run_study(arguments, out=f"{folder}/study", resume=None, as_json=False)
        record = StudyStore.open(Path(folder) / "study").record
    return f"`--slo {slo}`: {found(record)}"


def found(record: Mapping[str, Any]) -> str:
    """The outcome of a `study.json`."""
    best, rate = record["best"], record["trials"][0]["rate"]
    if best is None:
        return "no setting holds it at any rate tried."
    held = (
        f"the first step holds {text.number(rate)} requests/s" if rate else "the first step holds it at no rate tried"
    )
    if best["is_default"]:
        return f"{held}, and nothing better was found."
    settings = ", ".join(f"`{assignment(name, best['settings'][name])}`" for name in record["options"]["space"])
    claim = f" {record['confirmation']['text']}" if record["confirmation"] else ""
    return f"{held}; {settings} holds {text.number(best['rate'])} requests/s in the search.{claim}"


def markdown(report: Report, rows: Mapping[str, Row], doubts: Sequence[str]) -> list[str]:
    """The tables of a report."""
    lines = [f"## {report.title} (*simulated*: {report.device}, {MODEL})", ""]
    lines += [f"- {offered.name}: {offered.meaning}" for offered in report.loads]
    workload = yaml.safe_dump(dict(report.workload), default_flow_style=True, sort_keys=False, width=1000)
    lines += [f"- requests: `{workload.strip()}`", ""]
    cells = [[step, *(written(column, row[column]) for column in report.columns)] for step, row in rows.items()]
    lines += table(["step", *map(title, report.columns)], cells)
    lines += ["", "Ours beside theirs:", ""]
    claims = [(claim.told, claim.label, *claim.judge(rows)) for claim in report.claims]
    lines += table(["they report", "ours is", "ours (*simulated*)", "direction"], claims)
    return [*lines, *([""] if doubts else []), *(f"- Doubtful: {doubt}" for doubt in doubts)]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table, numbers to the right of its first column."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=REPORTS, default=list(REPORTS))
    parser.add_argument("--window", type=float, default=180.0, help="simulated seconds that each run measures")
    parser.add_argument(
        "--trials", type=int, default=12, help="trials of each study, of which there are two per report; 0 for none"
    )
    parser.add_argument("--out", type=Path, help="write the Markdown there too")
    options = parser.parse_args()
    lines = [
        "# Field reports, replayed (*simulated*)",
        "",
        f"Made by `scripts/field_reports.py`: {options.window:g} simulated seconds per run after a warm-up of "
        f"{WARMUP_S:g}, seed {SEED}. A timeout is a request that took more than {CLIENT_TIMEOUT_S:g} s.",
    ]
    try:
        for report in (REPORTS[name] for name in options.only):
            lines += ["", *markdown(report, *measure(report, options.window))]
            if options.trials:
                lines += ["", f"`tune --trials {options.trials}` from the first step (*simulated*):", ""]
                lines += [f"- {study(report, slo, options.trials)}" for slo in report.slos]
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    content = "\n".join(lines).rstrip() + "\n"
    print(content, end="")
    if options.out is not None:
        write_atomic(options.out, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
