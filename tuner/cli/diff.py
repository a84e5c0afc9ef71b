"""`tune diff`: what changed between two sides, judged against how much they vary by themselves."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from tuner.baseline import DEFAULT_STORE
from tuner.cli import diff_output as to
from tuner.cli import options as opt

if TYPE_CHECKING:
    from reports.diff.side import Side

_WHAT = "a baseline, or folder of a baseline, run or study"


def diff(
    base: Annotated[str, typer.Argument(metavar="BASE", help=f"Before: {_WHAT}.", show_default=False)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="After, likewise.", show_default=False)],
    store: opt.Store = DEFAULT_STORE,
    fail_on: to.FailOn = None,
    margin: to.Margin = "10%",
    exact: to.Exact = False,
    noise: Annotated[
        Optional[list[str]],  # noqa: UP045  (typer reads the annotation at run time)
        typer.Option(
            "--noise",
            metavar="BASELINE",
            help="A further baseline of this machine, whose repeats count beside four pairs of runs or more; may be "
            "repeated.",
            rich_help_panel="The gate",
            show_default=False,
        ),
    ] = None,
    allow: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--allow",
            metavar="PART,...",
            help="Compare although they differ in model, device, workload, rate, load, slo, simulated, or all.",
            rich_help_panel="The gate",
            show_default=False,
        ),
    ] = None,
    markdown: to.Markdown = None,
    junit: to.Junit = None,
    github: to.Github = False,
    json_: to.Json = False,
) -> None:
    """Hold one baseline, run or study against another and say whether it is worse.

    [bold]tune diff main candidate[/bold] compares metric by metric, with intervals from
    repeated runs; simulated sides under the same traffic also step by step.

    Exit code: 0 fine, 1 regression, 2 bad input, 3 cannot tell.
    """
    from reports.diff.comparable import differences, require_comparable
    from reports.diff.judge import judge
    from reports.diff.rules import parse_margin, parse_rule

    rules = [parse_rule(text) for text in fail_on or ()]
    allowed_change = parse_margin(margin)
    outputs = to.Outputs(json_, markdown, junit, github)
    to.prepare(outputs)
    sides = [open_side(text, Path(store)) for text in (base, new)]
    further = [open_side(text, Path(store)) for text in noise or ()]
    require_comparable(differences(*sides), _parts(allow or ()))
    judged = judge(*sides, rules=rules, noise=further, margin=allowed_change, strict=exact)
    to.show(judged, outputs)
    raise typer.Exit(judged.exit_code)


def open_side(text: str, store: Path) -> "Side":
    """A baseline of the store by its name, or whatever lies in a folder.

    Raises:
        UserError: neither, or it cannot be read.
    """
    from engine.errors import UserError
    from reports.diff.load import load_side
    from tuner.baseline.store import names_in

    names = names_in(store)
    if text in names:
        return load_side(store / text, text)
    if not Path(text).exists():
        there = f"there are {', '.join(names)}" if names else "there is none yet"
        raise UserError(f"{text!r} is neither a folder nor a baseline in {str(store)!r}: {there}")
    return load_side(text)


def _parts(texts: list[str] | tuple[()]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]
