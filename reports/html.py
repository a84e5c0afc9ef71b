"""A report as one HTML file that needs nothing else: no network, no second file."""

from functools import cache
from importlib.resources import files
from typing import Any

from reports.view import Report


def to_html(report: Report) -> str:
    """The page. plotly's script is inlined once, and only when there is a chart."""
    from plotly.offline import get_plotlyjs

    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            css=_template_text("style.css"),
            plotly=get_plotlyjs() if any(section.charts for section in report.sections) else "",
            plots={section.key: _plots(section.charts) for section in report.sections},
        )
    )


def _plots(charts: tuple[Any, ...]) -> list[tuple[str, int, str]]:
    """Title, height in pixels and figure of each chart. The figure is JSON that is safe inside a script element."""
    if not charts:
        return []
    from reports.plots import describe, figures

    return [
        (describe(chart), figure.layout.height, figure.to_json().replace("<", "\\u003c"))
        for chart, figure in zip(charts, figures(charts), strict=True)
    ]


@cache
def _environment() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_template_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _template_text(name: str) -> str:
    return files("reports").joinpath("templates", name).read_text(encoding="utf-8")
