"""The settings of a run, or of several beside each other, as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from reports.format import text
from reports.settings import setting_text, short_names
from reports.view import Table


def settings_tables(columns: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[Table, ...]:
    """All settings, one column per (label, settings): those that matter, then those at their defaults.

    Rows that differ between the columns stand out.
    """
    labels, configurations = [label for label, _ in columns], [settings for _, settings in columns]
    names = dict.fromkeys(name for settings in configurations for name in settings)
    shown = short_names(configurations)
    others = [name for name in names if name not in shown]
    return (
        _table("Setting", labels, configurations, shown, essential=True),
        *([_table("Setting at its default", labels, configurations, others, essential=False)] if others else []),
    )


def _table(
    title: str,
    labels: Sequence[str],
    configurations: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    essential: bool,
) -> Table:
    rows = tuple((text(name), *(setting_text(name, s.get(name)) for s in configurations)) for name in names)
    return Table(
        headers=(title, *labels),
        rows=rows,
        numeric=frozenset(range(1, len(labels) + 1)),
        highlight=frozenset(i for i, row in enumerate(rows) if len(set(row[1:])) > 1),
        essential=essential,
    )
