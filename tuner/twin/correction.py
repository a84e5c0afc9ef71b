"""What the twin gets wrong, learnt from what was measured beside it.

The twin knows the scheduler exactly and the device's steps approximately, so its errors are small, and alike for
settings that are alike. A Gaussian process over the settings says what to expect of the error where nothing was
measured, and how surely: the twin's prediction is its mean function (Kennedy and O'Hagan, "Predicting the output from a
complex computer code when fast approximations are available", Biometrika 87(1), 2000).
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

# As shares of the value itself, which logarithms turn into sums.
BIAS = 0.2
NOISE = 0.04
"""Standard deviation of a limit that was bracketed by runs."""
NOISE_OF_A_MISS = 0.12
"""Of one that is only known to lie below a rate that a run missed."""
_LIKELY_SIZE, _SIZES = 0.06, (0.02, 0.03, 0.045, 0.06, 0.09, 0.13, 0.2)
_SPREAD_OF_SIZES = 0.7
# Of the unit cube: settings a third of a range apart have errors of their own.
LENGTH = 0.35


class Lead(NamedTuple):
    """How far one setting is ahead of another: mean and standard deviation of the difference of logarithms."""

    mean: float
    deviation: float

    def expected_gain(self) -> float:
        """The expected improvement: the mean of what lies above 0 (Jones et al., J. Global Optimization 13, 1998)."""
        if self.deviation <= 0:
            return max(0.0, self.mean)
        z = self.mean / self.deviation
        density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        return self.mean * 0.5 * (1 + math.erf(z / math.sqrt(2))) + self.deviation * density


class Correction:
    """The error of predictions, as logarithm of measured over predicted.

    It is a part that all settings share, and one that depends on them whose size is the likeliest of a few, with
    small errors the likelier before anything was seen.

    Args:
        points: measured settings in the unit cube, `[measured][dimensions]`.
        errors: of each.
        noises: standard deviation of what made each error besides, such as the luck of a run; `NOISE` when not given.
    """

    def __init__(
        self, points: Sequence[Sequence[float]], errors: Sequence[float], noises: Sequence[float] | None = None
    ) -> None:
        import numpy as np

        self._points = np.array(points, dtype=np.float64)
        self._errors = np.array(errors, dtype=np.float64)
        self._noises = np.array([NOISE] * len(errors) if noises is None else noises, dtype=np.float64)
        self._size = max(_SIZES, key=self._log_posterior)
        if errors:
            self._factor = self._cholesky(self._size)
            self._weights = self._solve(self._errors)

    def at(self, point: Sequence[float]) -> float:
        """The expected error there."""
        import numpy as np

        return float(self._to_measured(np.array([point]))[0] @ self._weights) if len(self._errors) else 0.0

    def lead(self, ahead: Sequence[float], behind: Sequence[float]) -> Lead:
        """Difference of the errors at two points; what is wrong with both alike counts for nothing."""
        import numpy as np

        both = np.array([ahead, behind], dtype=np.float64)
        difference = np.array([1.0, -1.0])
        variance = difference @ self._covariance(both, both, self._size) @ difference
        mean = 0.0
        if len(self._errors):
            towards = difference @ self._to_measured(both)
            mean = float(towards @ self._weights)
            variance -= towards @ self._solve(towards)
        return Lead(mean, math.sqrt(max(0.0, float(variance))))

    def _to_measured(self, points: "np.ndarray") -> "np.ndarray":
        return self._covariance(points, self._points, self._size)

    def _covariance(self, left: "np.ndarray", right: "np.ndarray", size: float) -> "np.ndarray":
        import numpy as np

        squares = ((left[:, None, :] - right[None, :, :]) ** 2).sum(axis=2)
        return BIAS**2 + size**2 * np.exp(-0.5 * squares / LENGTH**2)

    def _cholesky(self, size: float) -> "np.ndarray":
        import numpy as np

        among = self._covariance(self._points, self._points, size)
        return np.linalg.cholesky(among + np.diag(self._noises**2))

    def _solve(self, target: "np.ndarray") -> "np.ndarray":
        from scipy.linalg import cho_solve

        return cho_solve((self._factor, True), target)

    def _log_posterior(self, size: float) -> float:
        import numpy as np
        from scipy.linalg import solve_triangular

        prior = -0.5 * (math.log(size / _LIKELY_SIZE) / _SPREAD_OF_SIZES) ** 2
        if not len(self._errors):
            return prior
        factor = self._cholesky(size)
        white = solve_triangular(factor, self._errors, lower=True)
        return prior - 0.5 * float(white @ white) - float(np.log(np.diag(factor)).sum())
