"""What the twin gets wrong, learnt from what was measured beside it.

The twin knows the scheduler exactly and the device's steps approximately, so its errors are small, and alike for
settings that are alike. A Gaussian process over the settings says what to expect of the error where nothing was
measured, and how surely: the twin's prediction is its mean function (Kennedy and O'Hagan, "Predicting the output from a
complex computer code when fast approximations are available", Biometrika 87(1), 2000).
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tuner.twin.bounded import Sites, take_in

if TYPE_CHECKING:
    import numpy as np

# As shares of the value itself, which logarithms turn into sums.
BIAS = 0.2
NOISE = 0.04
"""Standard deviation of a limit that was bracketed by runs."""
_LIKELY_SIZE, _SIZES = 0.06, (0.02, 0.03, 0.045, 0.06, 0.09, 0.13, 0.2)
_SPREAD_OF_SIZES = 0.7
# Of the unit cube: settings a third of a range apart have errors of their own.
LENGTH = 0.35


class Lead(NamedTuple):
    """How far one setting is ahead of another, or of what was said of it: mean and standard deviation of logarithms."""

    mean: float
    deviation: float

    def expected_gain(self) -> float:
        """The expected improvement: the mean of what lies above 0 (Jones et al., J. Global Optimization 13, 1998)."""
        if self.deviation <= 0:
            return max(0.0, self.mean)
        z = self.mean / self.deviation
        density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        return self.mean * self.chance_of(0.0) + self.deviation * density

    def chance_of(self, least: float) -> float:
        """Probability of being ahead by at least so much."""
        if self.deviation <= 0:
            return float(self.mean >= least)
        return 0.5 * (1 + math.erf((self.mean - least) / self.deviation / math.sqrt(2)))


class Errors:
    """Errors of predictions at some points, one after another."""

    def __init__(self) -> None:
        self._points: list[Sequence[float]] = []
        self._errors: list[float] = []
        self._are_bounds: list[bool] = []

    def add(self, point: Sequence[float], error: float, *, is_bound: bool = False) -> None:
        """One more; see `Correction`."""
        self._points.append(point)
        self._errors.append(error)
        self._are_bounds.append(is_bound)

    def correction(self) -> "Correction":
        """What they teach."""
        return Correction(self._points, self._errors, self._are_bounds)


class Correction:
    """The error of predictions, as logarithm of measured over predicted.

    It is a part that all settings share, and one that depends on them whose size is the likeliest of a few, with
    small errors the likelier before anything was seen.

    Args:
        points: measured settings in the unit cube, `[measured][dimensions]`.
        errors: of each.
        are_bounds: of each, whether the error is only known to lie below that, since a run missed; none by default.
    """

    def __init__(
        self, points: Sequence[Sequence[float]], errors: Sequence[float], are_bounds: Sequence[bool] | None = None
    ) -> None:
        import numpy as np

        self._points = np.array(points, dtype=np.float64)
        self._errors = np.array(errors, dtype=np.float64)
        self._are_bounds = np.array([False] * len(errors) if are_bounds is None else are_bounds, dtype=bool)
        self._size = max(_SIZES, key=self._log_posterior)
        if errors:
            self._sites, _ = self._seen(self._size)
            self._weights = self._sites.solve(self._sites.values)

    def at(self, point: Sequence[float]) -> float:
        """The expected error there."""
        import numpy as np

        return float(self._to_measured(np.array([point]))[0] @ self._weights) if len(self._errors) else 0.0

    def error(self, point: Sequence[float]) -> Lead:
        """The error there, with how surely it is known."""
        return self._combined([point], [1.0])

    def lead(self, ahead: Sequence[float], behind: Sequence[float]) -> Lead:
        """Difference of the errors at two points; what is wrong with both alike counts for nothing."""
        return self._combined([ahead, behind], [1.0, -1.0])

    def _combined(self, points: Sequence[Sequence[float]], factors: Sequence[float]) -> Lead:
        """Of the sum of the errors at some points, each times its factor."""
        import numpy as np

        places, weights = np.array(points, dtype=np.float64), np.array(factors)
        variance = weights @ _covariance(places, places, self._size) @ weights
        mean = 0.0
        if len(self._errors):
            towards = weights @ self._to_measured(places)
            mean = float(towards @ self._weights)
            variance -= towards @ self._sites.solve(towards)
        return Lead(mean, math.sqrt(max(0.0, float(variance))))

    def _to_measured(self, points: "np.ndarray") -> "np.ndarray":
        return _covariance(points, self._points, self._size)

    def _seen(self, size: float) -> "tuple[Sites, float]":
        """What the measurements come to with errors of such a size, and how likely that makes the bounds."""
        return take_in(_covariance(self._points, self._points, size), self._errors, self._are_bounds, NOISE)

    def _log_posterior(self, size: float) -> float:
        import numpy as np

        prior = -0.5 * (math.log(size / _LIKELY_SIZE) / _SPREAD_OF_SIZES) ** 2
        if not len(self._errors):
            return prior
        known = ~self._are_bounds
        among = _covariance(self._points[known], self._points[known], size) + NOISE**2 * np.eye(int(known.sum()))
        errors, (_, log_determinant) = self._errors[known], np.linalg.slogdet(among)
        _, bounds = self._seen(size)
        return prior + bounds - 0.5 * float(errors @ np.linalg.solve(among, errors) + log_determinant)


def _covariance(left: "np.ndarray", right: "np.ndarray", size: float) -> "np.ndarray":
    import numpy as np

    squares = ((left[:, None, :] - right[None, :, :]) ** 2).sum(axis=2)
    return BIAS**2 + size**2 * np.exp(-0.5 * squares / LENGTH**2)
