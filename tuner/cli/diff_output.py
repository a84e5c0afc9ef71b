"""What `tune diff` and `tune ci` print and write of a diff."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from engine.errors import UserError

if TYPE_CHECKING:
    from reports.diff.diff import Diff
    from reports.diff.forms import Forms

_GATE, _OUTPUT = "The gate", "The output"

FailOn = Annotated[
    Optional[list[str]],  # noqa: UP045  (typer reads the annotation at run time)
    typer.Option(
        "--fail-on",
        metavar="RULE",
        help="What is a regression, in place of the default gate: 'p95_ttft>+5%', 'goodput<-3%'; may be repeated.",
        rich_help_panel=_GATE,
        show_default=False,
    ),
]
Margin = Annotated[
    str,
    typer.Option(help="Change that must not go unseen: a metric is the same only within it.", rich_help_panel=_GATE),
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact", help="Between simulated sides, anything that moved is a regression.", rich_help_panel=_GATE
    ),
]
Markdown = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--markdown",
        metavar="FILE",
        help="Write Markdown for a comment on a pull request.",
        rich_help_panel=_OUTPUT,
        show_default=False,
    ),
]
Junit = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--junit", metavar="FILE", help="Write JUnit XML.", rich_help_panel=_OUTPUT, show_default=False),
]
Github = Annotated[
    bool,
    typer.Option(
        "--github",
        help="Print GitHub annotations, and add the Markdown to the job's summary.",
        rich_help_panel=_OUTPUT,
        show_default="on where GITHUB_ACTIONS=true",
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print the diff as JSON on standard output, nothing else.", rich_help_panel=_OUTPUT),
]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a diff goes.

    Attributes:
        as_json: JSON on standard output in place of the text.
        markdown, junit: files to write; None for none.
        github: annotations and the job's summary, whatever the environment says.
    """

    as_json: bool = False
    markdown: str | None = None
    junit: str | None = None
    github: bool = False


def prepare(outputs: Outputs) -> None:
    """Find out before anything is measured that the files can be written, and remove what an earlier call left.

    A file of another day must not be taken for the result of a call that ended without one.

    Raises:
        UserError: a file cannot be written.
    """
    import tempfile

    for option, file in (("--markdown", outputs.markdown), ("--junit", outputs.junit)):
        if file is None:
            continue
        path = Path(file)
        if path.is_dir():
            raise UserError(f"{option} {file!r} cannot be written: it is a folder")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path.parent):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"{option} {file!r} cannot be written: {error.strerror or error}") from error


def show(diff: "Diff", outputs: Outputs) -> None:
    """Print a diff and write its files.

    Raises:
        UserError: a file cannot be written.
    """
    from rich.console import Console

    from reports.diff.forms import forms_of
    from reports.diff.terminal import to_terminal

    if not outputs.as_json:
        to_terminal(diff, Console())
    publish(forms_of(diff), outputs)


def publish(forms: "Forms", outputs: Outputs) -> None:
    """Print the JSON where that is asked for, and write the files and what GitHub shows.

    Raises:
        UserError: a file cannot be written.
    """
    from tuner.cli.output import print_json

    if outputs.as_json:
        print_json(forms.json)
    if outputs.markdown is not None:
        _write(outputs.markdown, "--markdown", forms.markdown)
    if outputs.junit is not None:
        _write(outputs.junit, "--junit", forms.junit)
    if outputs.github or os.environ.get("GITHUB_ACTIONS") == "true":
        for line in forms.annotations:
            # The runner reads both streams; standard output may be the JSON's alone.
            typer.echo(line, err=outputs.as_json)
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            _append(summary, forms.markdown)


def _write(file: str, option: str, content: str) -> None:
    from workloads.records import write_atomic

    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    except OSError as error:
        raise UserError(f"{option} {file!r} cannot be written: {error.strerror or error}") from error


def _append(file: str, content: str) -> None:
    """The summary belongs to the whole job: what other steps wrote stays."""
    try:
        with Path(file).open("a", encoding="utf-8") as summary:
            summary.write(content)
    except OSError as error:
        raise UserError(f"GITHUB_STEP_SUMMARY {file!r} cannot be written: {error.strerror or error}") from error
