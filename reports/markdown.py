"""A report as GitHub-flavoured Markdown, short enough for a comment on a pull request."""

import re

from reports.charts import Chart, TrialChart
from reports.format import clean, number
from reports.trace_chart import TraceChart
from reports.view import Command, Report, Section, Table

MAX_ROWS = 24
MAX_LINES = 4
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 40


def to_markdown(report: Report) -> str:
    """The essential tables, the findings and the commands; what is longer stands in the HTML report."""
    blocks = [f"## {inline(report.headline.sentence)}", inline(f"{report.title}. {report.subtitle}")]
    blocks += [f"> **{inline(notice)}**" for notice in report.headline.notices]
    blocks += [_command(command) for command in report.commands]
    for section in report.sections:
        blocks += _section(section)
    return "\n\n".join(block for block in blocks if block) + "\n"


def _section(section: Section) -> list[str]:
    tables = [table for table in section.tables if table.essential]
    sparks = [spark for chart in section.charts if (spark := _sparkline(chart))]
    lines = [inline(line) for line in section.text[:MAX_LINES]] if not section.charts or tables else []
    if len(section.text) > MAX_LINES:
        lines.append(f"{len(section.text) - MAX_LINES} more lines in the HTML report.")
    findings = [f"- **{inline(finding.title)}.** {inline(finding.text)}" for finding in section.findings]
    body = [*lines, "\n".join(findings), *map(table_text, tables), "\n".join(sparks), *map(_command, section.commands)]
    body = [block for block in body if block]
    return [f"### {inline(section.title)}", *body] if body else []


def table_text(table: Table) -> str:
    """A table, cut after `MAX_ROWS` rows."""
    align = ["---:" if i in table.numeric else "---" for i in range(len(table.headers))]
    lines = [_row(table.headers), "|" + "|".join(align) + "|"]
    for i, row in enumerate(table.rows[:MAX_ROWS]):
        cells = [f"**{inline(cell)}**" if i in table.highlight and cell else inline(cell) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    text = "\n".join(lines)
    if len(table.rows) > MAX_ROWS:
        text += f"\n\n{len(table.rows) - MAX_ROWS} more rows in the HTML report."
    return text + (f"\n\n{inline(table.caption)}" if table.caption else "")


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(inline(cell) for cell in cells) + " |"


def _command(command: Command) -> str:
    longest = max((len(run) for run in re.findall("`+", command.text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{inline(command.label)}:\n\n{fence}\n{command.text}\n{fence}"


def _sparkline(chart: Chart) -> str:
    """One line of blocks for the charts that read as one series; empty for the others."""
    if isinstance(chart, TrialChart):
        goodputs = [point.goodput for point in chart.points]
        return f"Goodput by trial, 0 to {number(max(goodputs))} requests/s: `{_sparks(goodputs, max(goodputs))}`"
    if isinstance(chart, TraceChart):
        blocks = _sparks(list(chart.kv_mean_percent), 100)
        return f"{inline(f'KV use of the {chart.label} over its steps, 0 to 100%')}: `{blocks}`"
    return ""


def _sparks(values: list[float], top: float) -> str:
    size = -(-len(values) // SPARK_WIDTH)
    means = [sum(part) / len(part) for part in (values[i : i + size] for i in range(0, len(values), size))]
    last = len(SPARKS) - 1
    return "".join(SPARKS[min(last, round(last * mean / top))] if top > 0 else SPARKS[0] for mean in means)


# Everything that could start a construct inside a line, a mention or a link included. Underscores and hyphens inside
# words are harmless in GitHub's dialect and stay, so that settings can be read in the source too.
_SPECIAL = re.compile(r"([\\`*\[\]<>|~#&@])|(?<!\w)_|_(?!\w)")


def inline(text: str) -> str:
    """Text inside a line, in which nothing acts as Markdown."""
    escaped = _SPECIAL.sub(_escape, clean(text))
    # A bare address becomes a link by itself; a zero-width non-joiner inside it prevents that.
    return re.sub(r"(?i)\b(https?|www)(?=[:.])", "\\1\N{ZERO WIDTH NON-JOINER}", escaped)


def _escape(match: re.Match[str]) -> str:
    found = match.group(0)
    named = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "@\N{ZERO WIDTH NON-JOINER}"}
    return named.get(found, "\\" + found)
