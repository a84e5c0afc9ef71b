"""What a part of the proof set out to show, and whether it did; and the tables that its results are written in."""

from collections.abc import Iterable, Sequence
from typing import Any


def goal(text: str, *, met: bool, found: str) -> dict[str, Any]:
    """An entry of the `goals` of a result.

    Args:
        text: what was to be shown.
        found: what was found, for people.
    """
    return {"text": text, "met": met, "found": found}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table, numbers to the right of its first column."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def percent(share: float | None, digits: int = 1) -> str:
    """A share for people; a dash for None."""
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def p_value(p: float | None) -> str:
    """A p-value for people; a dash for None."""
    if p is None:
        return "–"
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}"
