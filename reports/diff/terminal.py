"""A diff for the terminal: the verdict first, readable at 80 columns and without colour."""

from collections.abc import Mapping

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from reports.diff import view
from reports.diff.diff import Diff, Verdict
from reports.diff.text import headline
from reports.terminal import STYLES, plain_text, rich_table
from reports.view import Table

_VERDICT_STYLES: Mapping[str, str] = {
    Verdict.WORSE: "bold red",
    Verdict.BETTER: "green",
    Verdict.CANNOT_TELL: "yellow",
}


def to_terminal(diff: Diff, console: Console) -> None:
    """Print a diff on one screen."""
    told = headline(diff)
    parts: list[RenderableType] = [plain_text(told.sentence, STYLES[told.tone])]
    parts += [plain_text(f"! {notice}", "yellow") for notice in told.notices]
    parts += [Text(), *map(plain_text, view.compared(diff))]
    if settings := view.settings_table(diff):
        parts += [Text(), rich_table(settings)]
    parts += [Text(), _lines(view.gated_table(diff))]
    if reasons := view.reasons(diff):
        parts += [Text(), *map(plain_text, reasons)]
    if moved := view.moved(diff):
        parts += [Text(), plain_text("What moved", "bold"), *map(plain_text, moved)]
    parts += [Text(), _lines(view.shown_table(diff))]
    console.print(Group(*parts))


def _lines(table: Table) -> RenderableType:
    """A table whose verdicts stand out."""
    grid = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for i, header in enumerate(table.headers):
        grid.add_column(plain_text(header), justify="right" if i in table.numeric else "left", overflow="fold")
    for row in table.rows:
        style = _VERDICT_STYLES.get(row[view.VERDICT_COLUMN], "")
        grid.add_row(*map(plain_text, row[: view.VERDICT_COLUMN]), plain_text(row[view.VERDICT_COLUMN], style))
    return grid
