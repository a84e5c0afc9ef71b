"""`tune twin`: learn a device from its runs, and hold what it predicts against what was measured."""

import json
from pathlib import Path
from typing import Annotated

import typer

twin = typer.Typer(
    name="twin",
    help="Learn a device from its own runs: fit its step times, then simulate with --device sim:FILE.json.",
    rich_markup_mode="rich",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Runs = Annotated[
    list[str], typer.Argument(metavar="RUN...", help="Folders of runs, studies or comparisons.", show_default=False)
]


@twin.command()
def fit(
    runs: Runs,
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE.json", help="Where the learnt device goes.", show_default=False)
    ],
) -> None:
    """Learn step times and memory of a device from runs on it.

    [bold]tune --slo p95_ttft=1s --device sim:FILE.json[/bold] then tunes on the twin: same scheduler, same memory, the
    device's own step times and their jitter, in a fraction of the time. What comes out is marked simulated.
    """
    from engine.build import LEARNT_SUFFIX, SIMULATED_PREFIX
    from engine.errors import UserError
    from tuner.twin.fit import learn_device, relative_errors, require_measured
    from workloads.records import write_atomic

    path = Path(out)
    if path.suffix != LEARNT_SUFFIX:
        raise UserError(f"--out {out!r} is not possible: a learnt device is a file that ends with {LEARNT_SUFFIX}")
    records = _records(runs)
    require_measured(records)
    device = learn_device(records)
    try:
        write_atomic(path, device.to_json())
    except OSError as error:
        raise UserError(f"--out {out!r} cannot be written: {error.strerror or error}") from error
    usual, large = relative_errors(device, records)
    typer.echo(
        f"{device.model} on {device.name}: learnt from {device.times.steps:,} steps of {device.runs} runs; a step is "
        f"within {100 * usual:.1f} % of its prediction half of the time, within {100 * large:.1f} % nine times in ten"
    )
    for name, weight in json.loads(device.to_json())["times"]["weights"].items():
        typer.echo(f"  {name:<24} {1e6 * weight:12.4g} us")
    typer.echo(f"{SIMULATED_PREFIX}{path}")


@twin.command()
def check(
    file: Annotated[str, typer.Argument(metavar="FILE.json", help="A learnt device.", show_default=False)],
    runs: Runs,
    json_: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Replay measured runs on a learnt device: predicted beside measured, with the errors and rank correlation.

    Give runs that it was not learnt from, under other settings, to see what its predictions are worth.
    """
    from engine.build import SIMULATED_PREFIX
    from tuner.cli.output import print_json
    from tuner.twin.accuracy import METRICS, accuracy, replay

    rows = replay(f"{SIMULATED_PREFIX}{file}", _records(runs))
    agreed = {name: accuracy(rows, name) for name in METRICS}
    if json_:
        from dataclasses import asdict

        print_json({"runs": [asdict(row) for row in rows], "accuracy": {n: asdict(a) for n, a in agreed.items()}})
        return
    _print(rows, agreed)


def _records(folders: list[str]) -> list:
    """The runs in the folders: themselves, or all that a study or a comparison holds."""
    from engine.errors import UserError
    from workloads.records import RUN_FILE, RunRecord

    found = []
    for folder in folders:
        path = Path(folder)
        inside = sorted(path.glob(f"runs/*/{RUN_FILE}"))
        if not inside and not (path / RUN_FILE).is_file():
            raise UserError(f"{folder} holds no runs: give the folder of a run, a study or a comparison")
        found += [RunRecord.load(file.parent) for file in inside] if inside else [RunRecord.load(path)]
    return found


def _print(rows: list, agreed: dict) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.4g}"

    table = Table("run", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in agreed:
        table.add_column(f"{name}\nmeasured", justify="right")
        table.add_column("\npredicted", justify="right")
    table.add_column("steps outside\nof what was seen", justify="right")
    for row in rows:
        cells = [number(side[name]) for name in agreed for side in (row.measured, row.predicted)]
        table.add_row(row.label, *cells, f"{100 * row.extrapolated:.0f} %")
    console = Console()
    console.print(table)
    for name, found in agreed.items():
        if found.median_error is None or found.bias is None:
            continue
        rank = "" if found.rank_correlation is None else f", rank correlation {found.rank_correlation:.2f}"
        console.print(
            f"{name}: median error {100 * found.median_error:.1f} %, bias {100 * found.bias:+.1f} %{rank} "
            f"({found.runs} runs)",
            highlight=False,
        )
