"""What a report says, before anyone decides how it looks.

Terminal, Markdown and HTML show the same `Report`: each number is computed and written once, in the modules that
build it. Texts here are plain; each output escapes them for itself.
"""

from dataclasses import dataclass
from enum import StrEnum

from reports.charts import Chart


class Tone(StrEnum):
    """How a verdict should feel at first sight."""

    GOOD = "good"
    NEUTRAL = "neutral"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Headline:
    """The verdict.

    Attributes:
        sentence: one sentence, complete without anything around it.
        notices: what a reader must know before believing it: simulated, random weights, interrupted.
    """

    sentence: str
    tone: Tone
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fact:
    """One number for the top of the page."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """Text to copy. Lines are joined by newlines; a shell command brings its own continuation marks."""

    label: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text.

    Attributes:
        headers: one per column; the first column names the row.
        numeric: columns to align right.
        highlight: rows that stand out, such as the winner's.
        essential: the short reports (Markdown, terminal) show it.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    highlight: frozenset[int] = frozenset()
    caption: str = ""
    essential: bool = True


@dataclass(frozen=True, slots=True)
class Finding:
    """One plain statement with its number."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a report. Shown in the order: text, findings, tables, charts, commands.

    Attributes:
        key: stable name, used as an anchor.
        charts: shown beside each other where there is room.
    """

    key: str
    title: str
    text: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    commands: tuple[Command, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report.

    Attributes:
        title: what was measured, for the page's title.
        subtitle: model, device, date.
        commands: the settings to use, empty when there is nothing to recommend.
    """

    title: str
    subtitle: str
    headline: Headline
    facts: tuple[Fact, ...]
    commands: tuple[Command, ...]
    sections: tuple[Section, ...]
