"""Two values of a setting in one number, judged by the repeats they share.

The runs of one repeat see the same arrivals and prompts under every value. What differs from seed to seed is therefore
common to both, and their ratio within a repeat varies much less than either number does.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

# From so many repeats on an interval is computed. Two would give one that no difference ever leaves.
ENOUGH = 3
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Standing:
    """One value in one number.

    Attributes:
        by_repeat: the number of each run, by its repeat; at least one.
    """

    label: str
    by_repeat: Mapping[int, float]

    @property
    def middle(self) -> float:
        """The median over the runs."""
        return median(self.by_repeat.values())


@dataclass(frozen=True, slots=True)
class Contrast:
    """One value against another.

    Attributes:
        changes: relative difference in each shared repeat, in order; empty where one of the numbers is not positive.
        repeats: how many they share.
        low, high: relative difference, 95 % interval over all pairs of values compared; None with fewer than `ENOUGH`
            repeats or where one of the numbers is not positive.
        told_apart: the repeats say that they differ, in the direction of their medians. Of fewer than `ENOUGH` they
            say so when all agree and the difference exceeds what they differ by among themselves, of one always.
    """

    changes: tuple[float, ...]
    repeats: int
    low: float | None
    high: float | None
    told_apart: bool

    @property
    def change(self) -> float | None:
        """Relative difference over the repeats, by the geometric mean of the ratios; None where one is not known."""
        return math.exp(fmean(math.log1p(one) for one in self.changes)) - 1 if self.changes else None


def contrast(one: Standing, other: Standing, pairs: int = 1) -> Contrast:
    """`one` against `other`.

    With enough repeats this is a paired t interval on the logarithms of the ratios (on the plain differences where a
    number is 0). As the best of several values is compared because it is the best, the level is divided by the number
    of pairs there are (Bonferroni).

    Args:
        pairs: how many pairs of values could have been compared.
    """
    shared = sorted(one.by_repeat.keys() & other.by_repeat.keys())
    both = [(one.by_repeat[repeat], other.by_repeat[repeat]) for repeat in shared]
    positive = all(a > 0 and b > 0 for a, b in both)
    differences = [math.log(a / b) if positive else a - b for a, b in both]
    expected = 1 if one.middle > other.middle else -1
    bounds = _interval(differences, pairs) if len(both) >= ENOUGH else None
    if bounds is not None:
        told_apart = min(expected * bound for bound in bounds) > 0
    else:
        told_apart = bool(both) and expected * fmean(differences) > max(differences) - min(differences)
    low, high = (math.exp(bound) - 1 for bound in bounds) if bounds is not None and positive else (None, None)
    changes = tuple(a / b - 1 for a, b in both) if positive else ()
    return Contrast(changes, len(both), low, high, told_apart)


def _interval(differences: Sequence[float], pairs: int) -> tuple[float, float]:
    from scipy import stats

    n, mean = len(differences), fmean(differences)
    error = math.sqrt(sum((d - mean) ** 2 for d in differences) / (n - 1) / n)
    reach = float(stats.t.ppf(1 - (1 - CONFIDENCE) / (2 * pairs), n - 1)) * error
    return mean - reach, mean + reach
