"""Line charts as small SVG files that need nothing else: panels side by side over a logarithmic axis of shares."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from workloads.records import write_atomic

WIDTH, HEIGHT = 330, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 30, 42
_LEGEND_HEIGHT = 30
# Told apart by people who see few colours (Okabe and Ito, "Color Universal Design", 2008).
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
_TICKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class Panel:
    """One chart.

    Attributes:
        lines: by name, the height at each of `xs`.
        xs: shares, above 0, ascending.
        top: height of the chart in the units of the lines.
        mark: a height that is marked across the chart; None for none.
    """

    title: str
    x_label: str
    y_label: str
    xs: Sequence[float]
    lines: Mapping[str, Sequence[float]]
    top: float
    mark: float | None = None


def write_chart(path: Path, panels: Sequence[Panel], columns: int = 3) -> None:
    """Write panels row by row. A name has the same colour in all of them."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    columns = min(columns, len(panels))
    width, rows = columns * WIDTH, math.ceil(len(panels) / columns)
    height = rows * HEIGHT + _LEGEND_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *_legend(colours, width),
    ]
    for number, panel in enumerate(panels):
        x, y = number % columns * WIDTH, number // columns * HEIGHT + _LEGEND_HEIGHT
        parts += [f'<g transform="translate({x},{y})">', *_panel(panel, colours), "</g>"]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, "\n".join([*parts, "</svg>"]) + "\n")


def _legend(colours: Mapping[str, str], width: int) -> list[str]:
    parts, step = [], width / max(1, len(colours))
    for number, (name, colour) in enumerate(colours.items()):
        x = number * step + 16
        parts.append(f'<line x1="{x:.0f}" y1="15" x2="{x + 22:.0f}" y2="15" stroke="{colour}" stroke-width="3"/>')
        parts.append(_text(x + 28, 19, name))
    return parts


def _panel(panel: Panel, colours: Mapping[str, str]) -> list[str]:
    inner_width, inner_height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    first, last = math.log(panel.xs[0]), math.log(panel.xs[-1])

    def x_of(value: float) -> float:
        return _LEFT + inner_width * (math.log(value) - first) / (last - first)

    def y_of(value: float) -> float:
        return _TOP + inner_height * (1.0 - min(value, panel.top) / panel.top)

    right, floor = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    parts = [_text(_LEFT, 18, panel.title, bold=True)]
    for tick in (t for t in _TICKS if panel.xs[0] <= t <= panel.xs[-1] * 1.0001):
        x = x_of(tick)
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{floor}" stroke="#eee"/>')
        parts.append(_text(x, floor + 14, f"{tick:.4g}" if tick >= 1 else f"{100 * tick:g} %", anchor="middle"))
    for quarter in range(5):
        value = panel.top * quarter / 4
        parts.append(f'<line x1="{_LEFT}" y1="{y_of(value):.1f}" x2="{right}" y2="{y_of(value):.1f}" stroke="#eee"/>')
        parts.append(_text(_LEFT - 5, y_of(value) + 4, f"{100 * value:.3g} %", anchor="end"))
    if panel.mark is not None:
        y = y_of(panel.mark)
        parts.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#999" stroke-dasharray="4 3"/>'
        )
    for name, heights in panel.lines.items():
        points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in zip(panel.xs, heights, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colours[name]}" stroke-width="2"/>')
    parts.append(
        f'<rect x="{_LEFT}" y="{_TOP}" width="{inner_width}" height="{inner_height}" fill="none" stroke="#888"/>'
    )
    parts.append(_text(_LEFT + inner_width / 2, HEIGHT - 10, panel.x_label, anchor="middle"))
    middle = _TOP + inner_height / 2
    parts.append(
        f'<text transform="translate(11,{middle:.0f}) rotate(-90)" text-anchor="middle">{escape(panel.y_label)}</text>'
    )
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
