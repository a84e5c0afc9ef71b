"""`tune ci`: a changed config, or another checkout, held against a baseline on this very machine."""

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from tuner.baseline import DEFAULT_STORE
from tuner.cli import diff_output as to
from tuner.cli import options as opt

if TYPE_CHECKING:
    from pathlib import Path

    from reports.diff.forms import Forms

_CANDIDATE, _RUNS = "The candidate", "The runs"


def ci(
    baseline: Annotated[
        str,
        typer.Option("--baseline", metavar="NAME", help="What to hold the candidate against.", show_default=False),
    ],
    store: opt.Store = DEFAULT_STORE,
    set_: Annotated[
        Optional[list[str]],  # noqa: UP045  (typer reads the annotation at run time)
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting in which the candidate differs from the baseline; may be repeated.",
            rich_help_panel=_CANDIDATE,
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="FILE",
            help="Likewise from a file: the best.json of a study, or YAML or JSON with names and values.",
            rich_help_panel=_CANDIDATE,
            show_default=False,
        ),
    ] = None,
    checkout: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="DIR",
            help="Measure the candidate with the code of another checkout, in a process of its own.",
            rich_help_panel=_CANDIDATE,
            show_default="this code",
        ),
    ] = None,
    base_checkout: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="DIR",
            help="Likewise the baseline's settings.",
            rich_help_panel=_CANDIDATE,
            show_default="this code; when simulated, the baseline's stored runs",
        ),
    ] = None,
    pairs: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            min=1,
            help="Runs of each side, in turn.",
            rich_help_panel=_RUNS,
            show_default="5; when simulated, one for each seed of the baseline",
        ),
    ] = None,
    out: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Folder of the result.", rich_help_panel=_RUNS, show_default="runs/DATE-ci-NAME"),
    ] = None,
    fail_on: to.FailOn = None,
    margin: to.Margin = "10%",
    exact: to.Exact = False,
    markdown: to.Markdown = None,
    junit: to.Junit = None,
    github: to.Github = False,
    json_: to.Json = False,
) -> None:
    """Measure a baseline's settings and a candidate's in turn on this machine, and judge the difference.

    [bold]tune ci --baseline main --set max_num_seqs=96[/bold] tests a config,
    [bold]tune ci --baseline main --checkout ../feature[/bold] the code of another checkout.
    On a simulated device the result is exact: only the candidate runs, and is
    compared with the stored runs step by step.

    Exit code: 0 fine, 1 regression, 2 bad input, 3 cannot tell, 130 interrupted.
    """
    import datetime
    from pathlib import Path

    from rich.console import Console

    from reports.diff.ended import forms_of_ended
    from reports.diff.forms import forms_of
    from reports.diff.rules import parse_margin, parse_rule
    from tuner.baseline.store import open_baseline
    from tuner.ci.candidate import candidate_settings
    from tuner.ci.gate import Candidate, Gate, run_gate
    from tuner.folders import claimed_folder
    from tuner.progress import ProgressDisplay

    gate = Gate([parse_rule(text) for text in fail_on or ()], parse_margin(margin), exact)
    display = ProgressDisplay(Console(stderr=True))
    kept = open_baseline(Path(store), baseline)
    candidate = Candidate(
        candidate_settings(kept.settings, settings, set_ or ()),
        None if checkout is None else Path(checkout),
        None if base_checkout is None else Path(base_checkout),
    )
    outputs = to.Outputs(json_, markdown, junit, github)
    to.prepare(outputs)
    with claimed_folder(out, f"{datetime.date.today():%Y-%m-%d}-ci-{baseline}") as folder:
        outcome = run_gate(kept, candidate, folder, display, gate=gate, pairs=pairs)
        forms = forms_of_ended(outcome.ended) if outcome.diff is None else forms_of(outcome.diff)
        if outcome.diff is not None or any(folder.iterdir()):
            _store(forms, folder)
    if outcome.diff is None:
        to.publish(forms, outputs)
        display.say(outcome.ended.sentence)
    else:
        to.show(outcome.diff, outputs)
        if outcome.interrupted:
            display.say("interrupted")
    if folder.exists():
        display.say(f"everything measured is in {folder}")
    raise typer.Exit(outcome.exit_code)


def _store(forms: "Forms", folder: "Path") -> None:
    """Keep the judgement beside what it was made of."""
    import json

    from workloads.records import write_atomic

    write_atomic(folder / "diff.json", json.dumps(forms.json, indent=2) + "\n")
    write_atomic(folder / "diff.md", forms.markdown)
    write_atomic(folder / "junit.xml", forms.junit)
