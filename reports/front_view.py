"""The front of a study with several objectives: what can be had, and at the price of what."""

from collections.abc import Mapping, Sequence
from typing import Any

from reports.format import DASH, change, count, text
from reports.front_chart import front_charts
from reports.objective_text import ShownObjective, objectives_of
from reports.sections import trial_mark
from reports.settings import assignment
from reports.view import Section, Table


def front_section(study: Mapping[str, Any]) -> Section | None:
    """Chart and table of the front; None where a study has one objective."""
    if study.get("front") is None:
        return None
    front, objectives = study["front"], objectives_of(study)
    if not front["members"]:
        nothing = "No setting that was tried met the SLO and kept to it, so there is no front."
        return Section("front", "The front", text=(nothing, *_left(front)))
    charts = front_charts(study, objectives)
    lines = [_how_to_read(objectives, len(front["members"])), *_left(front)]
    if outside := max((chart.num_outside for chart in charts), default=0):
        lines.append(f"{count(outside)} trials lie outside the chart; double-click shows them.")
    table = _table(study, objectives)
    return Section("front", "The front", text=tuple(lines), tables=(table,), charts=charts)


def _how_to_read(objectives: Sequence[ShownObjective], members: int) -> str:
    if members == 1:
        return "One setting is the best of those that met the SLO in every objective, so there is nothing to weigh."
    first, *others = (objective.title for objective in objectives)
    return (
        "Of these settings, which all met the SLO, none is better in one objective without being worse in another: "
        f"down the table {first} is traded for {' and '.join(others)}. Take the lowest of their rows that is still "
        "good enough in the first column."
    )


def _left(front: Mapping[str, Any]) -> list[str]:
    return [
        f"Trial {point['trial']} was on the front by its first run: {text(point.get('reason'))}."
        for point in front["left"]
    ]


def _table(study: Mapping[str, Any], objectives: Sequence[ShownObjective]) -> Table:
    front = study["front"]
    trials = {trial["number"]: trial for trial in study["trials"]}
    default = None if front["default"] is None else trials.get(front["default"]["trial"])
    alike: dict[tuple[float, ...], list[Mapping[str, Any]]] = {}
    for point in front["members"]:
        alike.setdefault(tuple(point["values"].values()), []).append(point)
    rows = list(alike.values())
    if default is not None and default["number"] not in [point["trial"] for point in front["members"]]:
        # First, to compare with: it is none of those to choose from.
        rows.insert(0, [front["default"]])
    headers = [cell for objective in objectives for cell in (objective.header, "change")]
    best = (study["best"] or {}).get("trial")
    return Table(
        headers=("Trial", *headers, "Differs from the default in"),
        rows=tuple(_row(points, objectives, trials.get(points[0]["trial"]), default) for points in rows),
        numeric=frozenset(range(1, 1 + len(headers))),
        highlight=frozenset(i for i, points in enumerate(rows) if best in [p["trial"] for p in points]),
        caption="Best first by the first objective. Values are over the run of the search and another on fresh "
        "arrivals; one marked once was not measured again, and its lead may be luck. Changes are against the default "
        "on the same arrivals, throughputs at the offered rate.",
    )


def _row(
    points: Sequence[Mapping[str, Any]],
    objectives: Sequence[ShownObjective],
    trial: Mapping[str, Any] | None,
    default: Mapping[str, Any] | None,
) -> tuple[str, ...]:
    """One setting, with the others that came to exactly the same: settings may differ in what never acted."""
    point, *others = points
    is_default = trial is not None and trial is default
    changes = point["change"] or {}
    values = [
        cell
        for o in objectives
        for cell in (o.write(point["values"].get(o.name)), "" if is_default else change(changes.get(o.name)))
    ]
    name = "default" if is_default else count(point["trial"])
    same = f"; the same as trial {', '.join(count(other['trial']) for other in others)}" if others else ""
    return f"{name}{', once' if point['measured'] == 1 else ''}", *values, _difference(trial, default) + same


def _difference(trial: Mapping[str, Any] | None, default: Mapping[str, Any] | None) -> str:
    """What a setting has other than the default, and of the default itself whether it may be kept at all."""
    if trial is None:
        return DASH
    if trial is default:
        return DASH if trial["state"] == "complete" else trial_mark(trial["state"])
    before = default["settings"] if default is not None else {}
    return ", ".join(assignment(name, value) for name, value in trial["settings"].items() if before.get(name) != value)
