"""A difference between two sides in one metric, and how far it can be off.

scipy is imported when an interval is asked for.
"""

import math
from dataclasses import dataclass
from typing import Literal

Design = Literal["paired", "sessions", "unpaired", "requests paired", "requests"]

# Two numbers of a run that differ by less are equal but for rounding.
TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Reading:
    """A metric of one run, on the scale on which it is compared."""

    seed: int
    session: str
    value: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A difference and how far it can be off.

    Attributes:
        base, new: the sides, over the runs that were compared.
        variance: of `new - base`.
        freedom: degrees of freedom behind it; infinite where it counts as known.
        design: what was compared: `paired` runs of the same seed, `sessions` of them, runs of other seeds
            (`unpaired`), or the requests of one run of each side (of the same traffic or not).
        units: pairs, sessions or runs; requests of the smaller side.
        has_noise: the machine's noise from run to run is in the variance.
        has_sessions: so is what differs from session to session, where that can have mattered.
    """

    base: float
    new: float
    variance: float
    freedom: float
    design: Design
    units: int
    has_noise: bool = True
    has_sessions: bool = True

    @property
    def difference(self) -> float:
        """`new - base`."""
        return self.new - self.base

    def interval(self, alpha: float) -> tuple[float, float]:
        """Limits of the difference, each wrong in a share `alpha` of cases."""
        from scipy.stats import t

        reach = float(t.isf(alpha, self.freedom)) * math.sqrt(self.variance)
        return self.difference - reach, self.difference + reach

    def exceeds(self, limit: float) -> float:
        """One-sided p-value for a true difference of at most `limit`."""
        from scipy.stats import t

        beyond, error = self.difference - limit, math.sqrt(self.variance)
        if error <= TINY:
            return 0.0 if beyond > TINY else 1.0
        return float(t.sf(beyond / error, self.freedom))

    def falls_short(self, limit: float) -> float:
        """One-sided p-value for a true difference of at least `limit`."""
        turned = Estimate(-self.base, -self.new, self.variance, self.freedom, self.design, self.units)
        return turned.exceeds(-limit)
