"""What a study compares settings by, as the reports write it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from reports.format import milliseconds, request_rate, token_rate
from reports.sides import Side

_WRITERS: Mapping[str, Callable[[float | None], str]] = {"ms": milliseconds, "tokens/s": token_rate}


@dataclass(frozen=True, slots=True)
class ShownObjective:
    """One number that a search makes as good as it can; an entry of `objectives` in `study.json`.

    Attributes:
        key: of a run's summary.
        title: as it stands inside a sentence.
        unit: of the number.
    """

    name: str
    key: str
    title: str
    unit: str
    larger_is_better: bool

    @property
    def header(self) -> str:
        """The title over a column: p95 TTFT keeps its small letter."""
        return self.title if self.title[1:2].isdigit() else self.title[:1].upper() + self.title[1:]

    @property
    def better(self) -> str:
        """More of it or less of it, whichever is better."""
        return f"{'more' if self.larger_is_better else 'a lower'} {self.title}"

    def write(self, value: float | None) -> str:
        """A value with its unit."""
        return _WRITERS.get(self.unit, request_rate)(value)

    def of_side(self, side: Side) -> float | None:
        """The value of a side of the study."""
        return side.goodput if self.name == GOODPUT.name else side.summary.get(self.key)


GOODPUT = ShownObjective("goodput", "request_goodput", "goodput", "good/s", larger_is_better=True)


def objectives_of(study: Mapping[str, Any]) -> tuple[ShownObjective, ...]:
    """The objectives of a study, the main one first; goodput where it names none."""
    names = ("name", "key", "title", "unit", "larger_is_better")
    given = study.get("objectives") or ()
    return tuple(ShownObjective(*(objective[name] for name in names)) for objective in given) or (GOODPUT,)


def main_objective(study: Mapping[str, Any]) -> ShownObjective:
    """The one by which the best settings are chosen."""
    return objectives_of(study)[0]
