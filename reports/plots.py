"""How each chart looks, as a plotly figure.

Colours are told apart by people with colour-blindness and read on light and on dark ground; the page's style sheet
sets text and grid colours, so that the figures follow the reader's scheme.
"""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import cycle
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from reports.charts import Chart, ImportanceChart, LatencyChart, TrialChart
from reports.front_chart import FrontChart
from reports.trace_chart import Floats, TraceChart
from reports.wait_chart import WaitChart

BLUE, ORANGE, GREEN, PURPLE, GREY = "#2b7bba", "#d9691e", "#1b9e77", "#b0609c", "#8b929c"
# A pair of curves is a default and a winner; of more, each is one of several equals.
PAIR = ((ORANGE, "dash"), (BLUE, "solid"))
MANY = tuple((color, dash) for dash in ("solid", "dash", "dot") for color in (BLUE, ORANGE, GREEN, PURPLE, GREY))
CAUSES = {
    "seats": ("no seat", BLUE),
    "budget": ("no token budget", ORANGE),
    "blocks": ("no room in the KV cache", PURPLE),
    "behind_head": ("behind the head of the queue", "#d9a9cb"),
    "batch": ("batch closed or growing", GREEN),
}

FRONT_PARTS = {
    "met": ("met the SLO", GREY, "circle", 0.45),
    "missed": ("missed the SLO", GREY, "x-thin-open", 0.45),
    "left": ("left the front when measured again", PURPLE, "circle-open", 0.8),
    "front": ("the front, by trial", BLUE, "circle", 1.0),
}

# Wider than this, a linear axis would squeeze most requests against its left end.
LOG_SPREAD = 20
# Wider than this, labels at 1, 2 and 5 of every power would run into each other.
CROWDED_SPREAD = 300


def figures(charts: Sequence[Chart]) -> list[go.Figure]:
    """One figure per chart, in order. Runs drawn beside each other over time share their scales, for comparison."""
    return [_DRAWERS[type(chart)](chart, [other for other in charts if type(other) is type(chart)]) for chart in charts]


def describe(chart: Chart) -> str:
    """The title of a chart, for the page and for screen readers."""
    return _TITLES[type(chart)](chart)


def _trace(chart: TraceChart, beside: Sequence[TraceChart]) -> go.Figure:
    rows: tuple[tuple[str, tuple[tuple[str, str, Callable[[TraceChart], Floats]], ...]], ...] = (
        ("Prefill tokens per step", (("prefill", BLUE, lambda c: c.prefill_tokens),)),
        ("Decode tokens per step", (("decode", ORANGE, lambda c: c.decode_tokens),)),
        ("Prefill tokens per decode token", (("ratio", GREEN, lambda c: c.ratio),)),
        (
            "KV blocks in use, %",
            (("max", GREY, lambda c: c.kv_max_percent), ("mean", BLUE, lambda c: c.kv_mean_percent)),
        ),
        ("Requests", (("running", BLUE, lambda c: c.running), ("waiting", ORANGE, lambda c: c.waiting))),
        (
            "Preemptions so far",
            (("recompute", PURPLE, lambda c: c.recompute_preemptions), ("swap", GREEN, lambda c: c.swap_preemptions)),
        ),
    )
    if any(c.has_swap_traffic for c in beside):
        traffic = (("out", PURPLE, lambda c: c.swap_out_mib_s), ("in", GREEN, lambda c: c.swap_in_mib_s))
        rows += (("Swap traffic, MiB/s", traffic),)
    titles = [
        title + (": " + " · ".join(f'<span style="color:{c}">{n}</span>' for n, c, _ in lines) if lines[1:] else "")
        for title, lines in rows
    ]
    height = 152 * len(rows)
    figure = make_subplots(
        rows=len(rows), cols=1, shared_xaxes=True, vertical_spacing=51 / height, subplot_titles=titles
    )
    for row, (title, lines) in enumerate(rows, start=1):
        for name, color, values in lines:
            x = chart.ratio_t_s if name == "ratio" else chart.t_s
            shape = "hv" if name in ("ratio", "recompute", "swap", "out", "in") else "linear"
            line = {"color": color, "width": 1.5, "shape": shape}
            figure.add_scatter(x=_short(x), y=_short(values(chart)), name=name, mode="lines", line=line, row=row, col=1)
        top = max((float(np.nanmax(v)) for c in beside for *_, f in lines if not np.isnan(v := f(c)).all()), default=0)
        high = 100 if title.startswith("KV") else max(top, 1) * 1.05
        figure.update_yaxes(range=[0, high], nticks=5, row=row, col=1)
    _time_axis(figure, chart, beside, row=len(rows))
    figure.update_annotations(x=0, xanchor="left", font_size=13)
    return _styled(figure, height=height, legend=False)


def _waits(chart: WaitChart, beside: Sequence[WaitChart]) -> go.Figure:
    figure = go.Figure()
    for cause, (name, color) in CAUSES.items():
        if cause in chart.waiting:
            figure.add_scatter(
                x=_short(chart.t_s),
                y=_short(chart.waiting[cause]),
                name=name,
                mode="lines",
                stackgroup="waiting",
                line={"color": color, "width": 0.5, "shape": "hv"},
                fillcolor=color,
            )
    top = max(float(sum(c.waiting.values(), np.zeros(1)).max()) for c in beside)
    figure.update_yaxes(title_text="requests", range=[0, top * 1.05])
    _time_axis(figure, chart, beside)
    return _styled(figure, height=340, legend=True)


def _time_axis(
    figure: go.Figure, chart: TraceChart | WaitChart, beside: Sequence[TraceChart | WaitChart], row: int | None = None
) -> None:
    """Seconds below the last row, the same for all charts beside each other, with the measured window shaded."""
    if chart.window_s is not None:
        start_s, end_s = chart.window_s
        figure.add_vrect(x0=start_s, x1=end_s, fillcolor=GREY, opacity=0.12, line_width=0, layer="below")
    last_s = max(float(c.t_s[-1]) for c in beside)
    figure.update_xaxes(range=[0, last_s * 1.02 or 1])
    where = {} if row is None else {"row": row, "col": 1}
    figure.update_xaxes(title_text="seconds; shaded: the measured window", **where)


def _latency(chart: LatencyChart, beside: Sequence[LatencyChart]) -> go.Figure:
    figure = go.Figure()
    # The last colours of the pair: a lone run is drawn like a winner.
    styles = PAIR[-len(chart.curves) :] if len(chart.curves) <= len(PAIR) else MANY
    for curve, (color, dash) in zip(chart.curves, cycle(styles), strict=False):
        figure.add_scatter(
            x=_short(curve.latency_ms),
            y=_short(100 * curve.share),
            name=escape(curve.label),
            mode="lines",
            line={"color": color, "dash": dash, "width": 2, "shape": "hv"},
        )
    for bound in chart.bounds:
        figure.add_vline(
            x=bound.bound_ms,
            line={"color": PURPLE, "dash": "dot", "width": 1.5},
        )
        if bound.required_share is not None:
            figure.add_hline(y=100 * bound.required_share, line={"color": PURPLE, "dash": "dot", "width": 1})
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="lines",
            name=escape(bound.text),
            line={"color": PURPLE, "dash": "dot", "width": 1.5},
        )
    values = np.concatenate([curve.latency_ms for curve in chart.curves] + [[b.bound_ms for b in chart.bounds]])
    low, high = float(values.min()), float(values.max())
    if low > 0 and high > LOG_SPREAD * low:
        factors = (1, 2, 5) if high < CROWDED_SPREAD * low else (1,)
        ticks = [factor * 10.0**power for power in range(-3, 7) for factor in factors]
        figure.update_xaxes(type="log", range=[np.log10(low / 1.1), np.log10(high * 1.1)])
        figure.update_xaxes(tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks], tickangle=0)
    else:
        figure.update_xaxes(range=[0, high * 1.05])
    figure.update_xaxes(title_text=f"{chart.metric}, ms")
    figure.update_yaxes(title_text="requests, %", range=[0, 102])
    return _styled(figure, height=340, legend=True)


def _trials(chart: TrialChart, beside: Sequence[TrialChart]) -> go.Figure:
    figure = go.Figure()
    groups = (("met the SLO", True, BLUE, "circle"), ("missed the SLO", False, GREY, "x-thin-open"))
    for name, feasible, color, symbol in groups:
        points = [point for point in chart.points if point.feasible is feasible]
        figure.add_scatter(
            x=[point.number for point in points],
            y=[point.goodput for point in points],
            hovertext=[escape(point.hover) for point in points],
            name=name,
            mode="markers",
            marker={"color": color, "symbol": symbol, "size": 9, "line": {"width": 2, "color": color}},
        )
    if chart.best_so_far:
        numbers, best = zip(*chart.best_so_far, strict=True)
        last = max(point.number for point in chart.points)
        figure.add_scatter(
            x=[*numbers, last],
            y=[*best, best[-1]],
            name="best so far",
            mode="lines",
            line={"color": GREEN, "width": 2, "shape": "hv"},
        )
    if chart.baseline is not None:
        figure.add_hline(y=chart.baseline, line={"color": ORANGE, "dash": "dash", "width": 1.5})
        figure.add_scatter(
            x=[None], y=[None], mode="lines", name="baseline", line={"color": ORANGE, "dash": "dash", "width": 1.5}
        )
    figure.update_xaxes(title_text="trial")
    figure.update_yaxes(title_text="goodput, requests/s", rangemode="tozero")
    return _styled(figure, height=340, legend=True)


def _front(chart: FrontChart, beside: Sequence[FrontChart]) -> go.Figure:
    figure = go.Figure()
    for part, (name, color, symbol, opacity) in FRONT_PARTS.items():
        points = sorted((p for p in chart.points if p.part == part), key=lambda p: (p.x, p.y))
        if not points:
            continue
        on_front, line = part == "front", {"width": 2, "color": color}
        # Settings that came to exactly the same share a place, and the first has its label.
        first = {(p.x, p.y): p.number for p in reversed(points)}
        # On the better side of the front there is nothing that a label could cover.
        where = f"{'top' if chart.y.larger_is_better else 'bottom'} {'right' if chart.x.larger_is_better else 'left'}"
        figure.add_scatter(
            x=[p.x for p in points],
            y=[p.y for p in points],
            text=[str(p.number) if first[p.x, p.y] == p.number else "" for p in points],
            hovertext=[f"trial {p.number}: {escape(p.hover)}" for p in points],
            textposition=where,
            name=name,
            mode="markers" + ("+text" if on_front else "") + ("+lines" if on_front and chart.connected else ""),
            line={"color": color, "width": 1.5},
            marker={"color": color, "symbol": symbol, "size": 9, "opacity": opacity, "line": line},
        )
    default = [p for p in chart.points if p.is_default]
    figure.add_scatter(
        x=[p.x for p in default],
        y=[p.y for p in default],
        hoverinfo="skip",
        name="default",
        mode="markers",
        marker={"color": ORANGE, "symbol": "diamond-open", "size": 17, "line": {"width": 2.5}},
    )
    for axis, objective, (low, high) in (
        (figure.update_xaxes, chart.x, chart.x_range),
        (figure.update_yaxes, chart.y, chart.y_range),
    ):
        better = "more" if objective.larger_is_better else "less"
        axis(title_text=f"{escape(objective.title)}, {escape(objective.unit)} ({better} is better)", range=[low, high])
    return _styled(figure, height=420, legend=True)


def _importance(chart: ImportanceChart, beside: Sequence[ImportanceChart]) -> go.Figure:
    figure = go.Figure(
        go.Bar(
            x=[100 * share for share in reversed(chart.shares)],
            y=[escape(name) for name in reversed(chart.parameters)],
            orientation="h",
            marker_color=BLUE,
            width=0.6,
        )
    )
    figure.update_xaxes(title_text="importance, %", rangemode="tozero")
    return _styled(figure, height=340, legend=False)


def _styled(figure: go.Figure, height: int, legend: bool) -> go.Figure:
    figure.update_layout(
        template=go.layout.Template(),
        height=height,
        margin={"l": 8, "r": 8, "t": 32, "b": 8},
        font={"family": "system-ui, sans-serif", "size": 12},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=legend,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        hovermode="closest",
    )
    figure.update_xaxes(automargin=True, showgrid=True, zeroline=False)
    figure.update_yaxes(automargin=True, showgrid=True, zeroline=False)
    return figure


def _short(values: Floats) -> list[float | None]:
    """Five significant digits are more than a pixel shows and a third of the page's size. NaN leaves a hole."""
    return [None if np.isnan(value) else float(f"{value:.5g}") for value in values]


_DRAWERS: Mapping[type, Callable[[Any, Sequence[Any]], go.Figure]] = {
    TraceChart: _trace,
    WaitChart: _waits,
    LatencyChart: _latency,
    TrialChart: _trials,
    FrontChart: _front,
    ImportanceChart: _importance,
}
_TITLES: Mapping[type, Callable[[Any], str]] = {
    TraceChart: lambda chart: f"Steps of the {chart.label} over time",
    WaitChart: lambda chart: f"Requests waiting in the {chart.label}, by cause",
    LatencyChart: lambda chart: f"{chart.metric} by share of requests",
    TrialChart: lambda chart: "Goodput by trial",
    FrontChart: lambda chart: f"{chart.y.header} and {chart.x.title} of every trial",
    ImportanceChart: lambda chart: "Which parameters matter",
}
