"""A report for the terminal: the verdict first, readable at 80 columns and without colour."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from reports import comparison_view, run_view, study_view
from reports.comparison import load_comparison
from reports.comparison_headline import comparison_headline
from reports.format import clean
from reports.front_view import front_section
from reports.headline import run_headline, study_headline
from reports.study import open_study
from reports.view import Command, Headline, Section, Table, Tone
from reports.waits_view import waits_section
from workloads.records import RunRecord

STYLES: Mapping[Tone, str] = {
    Tone.GOOD: "bold green",
    Tone.NEUTRAL: "bold",
    Tone.WARN: "bold yellow",
    Tone.BAD: "bold red",
}


def study_summary(study: dict[str, Any], folder: Path) -> RenderableType:
    """A study on one screen.

    Args:
        study: the content of `study.json`.
        folder: where it lies; runs that are not there are left out.

    Raises:
        UserError: the record does not have the form of a study.
    """
    opened = open_study(study, folder)
    front = front_section(study)
    sections = (
        *([front] if front else []),
        study_view.comparison_section(opened),
        study_view.attainment_section(opened),
    )
    return _screen(study_headline(opened), study_view.recommended_commands(opened), sections, folder)


def run_summary(record: RunRecord) -> RenderableType:
    """A run on one screen.

    Raises:
        UserError: one of its tables is damaged.
    """
    from reports.sections import diagnosis_section

    meta = record.meta
    sections = (
        run_view.validity_section(meta),
        run_view.attainment_section(meta),
        Section("numbers", "Results", tables=run_view.run_tables(record)),
        waits_section([("run", record)]),
        diagnosis_section([("run", record)]),
    )
    return _screen(run_headline(meta), (), sections, record.path)


def comparison_summary(folder: Path) -> RenderableType:
    """A comparison on one screen.

    Args:
        folder: of the comparison; runs that are not there are left out.

    Raises:
        UserError: it holds no comparison, or a damaged one.
    """
    opened = load_comparison(folder)
    option = str(opened.comparison["option"])
    sections = (Section("comparison", f"By {option}", tables=comparison_view.comparison_tables(opened)),)
    return _screen(comparison_headline(opened), (), sections, folder)


def _screen(
    headline: Headline, commands: Sequence[Command], sections: Sequence[Section], folder: Path
) -> RenderableType:
    parts: list[RenderableType] = [plain_text(headline.sentence, STYLES[headline.tone])]
    parts += [plain_text(f"! {notice}", "yellow") for notice in headline.notices]
    for command in commands:
        parts += [Text(), plain_text(f"{command.label}:", "bold"), *(_unbroken(f"  {line}") for line in command.lines)]
    for section in sections:
        parts += _section(section)
    return Group(*parts, Text(), _unbroken(f"Stored in {folder}"))


def _section(section: Section) -> list[RenderableType]:
    tables = [table for table in section.tables if table.essential]
    return [
        Text(),
        plain_text(section.title, "bold"),
        *(plain_text(line) for line in section.text),
        *(Text.assemble("- ", plain_text(f"{f.title}. ", "bold"), plain_text(f.text)) for f in section.findings),
        *(part for table in tables for part in (Text(), rich_table(table))),
    ]


def plain_text(value: str, style: str = "") -> Text:
    """Text that nothing in it can style."""
    # Names come from files: neither rich's markup nor a terminal's control codes may act in them.
    return Text(clean(value), style=style)


def _unbroken(value: str) -> Text:
    """A line to copy: the terminal may wrap it, this program must not."""
    return Text(clean(value), no_wrap=True, overflow="ignore")


def rich_table(table: Table) -> RenderableType:
    """A table without lines beside its headers."""
    grid = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for i, header in enumerate(table.headers):
        grid.add_column(plain_text(header), justify="right" if i in table.numeric else "left", overflow="fold")
    for i, row in enumerate(table.rows):
        grid.add_row(*map(plain_text, row), style="bold" if i in table.highlight else None)
    return grid
