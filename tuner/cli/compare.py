"""`tune compare`: one workload under every value of one setting."""

import shlex
from pathlib import Path
from typing import Any

from tuner.arguments import TuneArguments
from tuner.cli.output import INTERRUPTED_CODE, print_json, print_summary, this_command
from tuner.compare import run_comparison
from tuner.progress import ProgressDisplay
from workloads.records import RunRecord


def run_compare(arguments: TuneArguments, what: str, *, repeats: int, out: str | None, as_json: bool) -> int:
    """Measure, write the comparison's folder with its reports, and print the summary.

    Returns:
        Exit code 0; 1 when a value could not be measured, 130 when interrupted. What was measured is stored in each
        case.

    Raises:
        UserError: bad input, or not one value that can be measured.
    """
    from rich.console import Console

    from reports.build import HTML_FILE

    display = ProgressDisplay(Console(stderr=True))
    compared = run_comparison(arguments, what, repeats=repeats, out=out, command=this_command(), display=display)
    where = shlex.quote(str(compared.folder))
    if not compared.record["runs"]:
        kept = f"; what it had measured is in {where}" if compared.folder.exists() else ""
        display.say(f"interrupted before the first run was whole{kept}")
        return INTERRUPTED_CODE
    if as_json:
        report = compared.folder / HTML_FILE
        runs = [_with_numbers(compared.folder, run) for run in compared.record["runs"]]
        print_json(compared.record | {"runs": runs, "folder": str(compared.folder), "report": str(report)})
    else:
        print_summary(compared.folder)
    if compared.interrupted:
        display.say(f"interrupted; everything measured is stored in {where}")
        return INTERRUPTED_CODE
    return 1 if compared.failures else 0


def _with_numbers(folder: Path, run: dict[str, Any]) -> dict[str, Any]:
    """A run's entry with what its record says of it."""
    meta = RunRecord.load(folder / run["path"]).meta
    return run | {name: meta[name] for name in ("summary", "classes", "verdict", "validity")}
