"""Values of a Gaussian process of which some are only known to lie below a bound.

By expectation propagation each bound becomes a value with a spread of its own, such that mean and variance there are
right given all others (Rasmussen and Williams, "Gaussian Processes for Machine Learning", section 3.6; a bound is their
probit likelihood).
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_SWEEPS = 10
_TINY = 1e-9


@dataclass(frozen=True)
class Sites:
    """What was seen of a Gaussian process, as values with noise.

    Attributes:
        values: float64 `[seen]`.
        total: covariance of the values, noise included, float64 `[seen, seen]`.
    """

    values: "np.ndarray"
    total: "np.ndarray"

    def solve(self, target: "np.ndarray") -> "np.ndarray":
        """`total^-1 target`, float64 `[seen]`."""
        import numpy as np

        return np.linalg.solve(self.total, target)


def take_in(among: "np.ndarray", values: "np.ndarray", are_bounds: "np.ndarray", noise: float) -> tuple[Sites, float]:
    """Values and bounds as values with noise, and the logarithm of how likely the others make the bounds.

    Args:
        among: prior covariance, float64 `[seen, seen]`.
        values: what was measured, or the bound above it, float64 `[seen]`.
        are_bounds: which are bounds, bool `[seen]`.
        noise: standard deviation of what was measured about the process.
    """
    import numpy as np

    precision = np.where(are_bounds, 0.0, noise**-2)
    weighted = precision * values  # precision times value
    log_likely = np.zeros(len(values))
    for _ in range(_SWEEPS if are_bounds.any() else 0):
        for i in np.flatnonzero(are_bounds):
            covariance = np.linalg.solve(np.eye(len(values)) + among * precision, among)
            mean, variance = (covariance @ weighted)[i], covariance[i, i]
            rest = 1 / variance - precision[i]
            rest_mean = (mean / variance - weighted[i]) / rest
            precision[i], weighted[i], log_likely[i] = _below(values[i], noise, rest_mean, 1 / rest)
    # A bound that says nothing has no precision; a huge noise says the same.
    safe = np.maximum(precision, _TINY)
    return Sites(weighted / safe, among + np.diag(1 / safe)), float(log_likely.sum())


def _below(bound: float, noise: float, mean: float, variance: float) -> tuple[float, float, float]:
    """A value known to lie below a bound: precision, precision times value, and log of how likely that was."""
    from scipy.stats import norm

    spread = math.sqrt(noise**2 + variance)
    z = (bound - mean) / spread
    log_likely = float(norm.logcdf(z))
    slope = math.exp(float(norm.logpdf(z)) - log_likely)
    new_mean = mean - variance * slope / spread
    new_variance = variance - variance**2 * slope * (z + slope) / spread**2
    precision = max(0.0, 1 / new_variance - 1 / variance)
    return precision, new_mean / new_variance - mean / variance if precision else 0.0, log_likely
