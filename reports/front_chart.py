"""The data behind the chart of a front: every setting by two objectives, and which part it plays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from reports.format import is_known
from reports.objective_text import ShownObjective
from reports.settings import assignment, short_names

Part = Literal["front", "left", "met", "missed"]

# A chart reaches beyond the front and the default by less than their spread: far-off settings would squeeze them into
# a corner.
_MARGIN_SPREADS = 0.6


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """One setting.

    Attributes:
        number: of its trial.
        x, y: by the two objectives of the chart.
        part: on the front; no longer on it; met the SLO; missed it.
        is_default: it is the default.
    """

    number: int
    x: float
    y: float
    part: Part
    is_default: bool
    hover: str


@dataclass(frozen=True, slots=True)
class FrontChart:
    """Settings by two objectives.

    Attributes:
        x, y: the objectives.
        points: all that have both values.
        x_range, y_range: what to show of them.
        connected: the points of the front lie on a line, which they do not with a third objective.
    """

    x: ShownObjective
    y: ShownObjective
    points: tuple[FrontPoint, ...]
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    connected: bool

    @property
    def num_outside(self) -> int:
        """Points that lie beyond what is shown."""
        return sum(
            not (self.x_range[0] <= p.x <= self.x_range[1] and self.y_range[0] <= p.y <= self.y_range[1])
            for p in self.points
        )


def front_charts(study: Mapping[str, Any], objectives: Sequence[ShownObjective]) -> tuple[FrontChart, ...]:
    """The first objective against each of the others. The front stands at the values over all its runs."""
    front = study["front"]
    known = {point["trial"]: point["values"] for point in (*front["members"], *front["left"])}
    if front["default"] is not None:
        known[front["default"]["trial"]] = front["default"]["values"]
    members = {point["trial"] for point in front["members"]}
    left = {point["trial"] for point in front["left"]}

    def part(trial: Mapping[str, Any]) -> Part:
        if trial["number"] in members:
            return "front"
        if trial["number"] in left:
            return "left"
        return "met" if trial["state"] == "complete" else "missed"

    shown = short_names([trial["settings"] for trial in study["trials"]])
    y, *others = objectives
    charts = []
    for x in others:
        points = []
        for trial in study["trials"]:
            values = known.get(trial["number"]) or trial.get("values") or {}
            if is_known(values.get(x.name)) and is_known(values.get(y.name)):
                hover = ", ".join(assignment(name, trial["settings"].get(name)) for name in shown)
                default = trial.get("kind") == "baseline"
                at = values[x.name], values[y.name]
                points.append(FrontPoint(trial["number"], *at, part(trial), default, hover))
        if points:
            x_range, y_range = (_range(points, axis) for axis in ("x", "y"))
            charts.append(FrontChart(x, y, tuple(points), x_range, y_range, len(others) == 1))
    return tuple(charts)


def _range(points: Sequence[FrontPoint], axis: str) -> tuple[float, float]:
    """From the least to the greatest that is worth showing, with room for labels."""
    values = [getattr(point, axis) for point in points]
    needed = [getattr(p, axis) for p in points if p.part in ("front", "left") or p.is_default] or values
    low, high = min(needed), max(needed)
    spread = high - low or abs(high) or 1.0
    low = max(min(values), low - _MARGIN_SPREADS * spread)
    high = min(max(values), high + _MARGIN_SPREADS * spread)
    room = 0.08 * (high - low or abs(high) or 1.0)
    return max(0.0, low - room), high + room
