"""The scale on which numbers of runs are compared: logarithms, whose differences are ratios, where all are above 0."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, slots=True)
class Scale:
    """Between numbers and the values whose differences are judged.

    Attributes:
        unit: None for logarithms. Else numbers are counted in this unit: the base's mean, so that differences are
            relative to it, or 1 where that mean is 0 and no difference can be relative.
        relative: changes are shares of the base; else they are in the number's own unit.
    """

    unit: float | None
    relative: bool = True

    def value(self, number: float) -> float:
        """A number on this scale."""
        return math.log(number) if self.unit is None else number / self.unit

    def number(self, value: float) -> float:
        """The number that stands at a value of this scale."""
        return math.exp(value) if self.unit is None else value * self.unit

    def change(self, difference: float) -> float:
        """The relative change that a difference on this scale is, or the plain one."""
        # Beyond what a float holds it is as good as infinite.
        return math.expm1(min(difference, 700.0)) if self.unit is None else difference

    def limit(self, relative: float) -> float:
        """The difference on this scale that a relative change is; none where nothing can be relative."""
        if self.unit is None:
            return math.log1p(relative)
        return relative if self.relative else 0.0


def scale_for(base: Iterable[float], others: Iterable[float]) -> Scale:
    """Logarithms where all numbers are above 0, else plain differences.

    Args:
        base: at least one number, by whose mean plain differences are divided unless it is 0.
    """
    ours = list(base)
    if min([*ours, *others]) > 0:
        return Scale(None)
    mean = fmean(ours)
    return Scale(abs(mean)) if mean else Scale(1.0, relative=False)
