"""What a setting would add to a front: the hypervolume that it dominates beside what the front does.

The hypervolume is taken as the mean, over directions from a point behind everything, of how far the front reaches
(Zhang and Golovin, "Random hypervolume scalarizations for provable multi-objective black box optimization", ICML
2020): the same formula for any number of objectives, and exact for one.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_DIRECTIONS = 1024
# Where the volume begins behind the worst of the front, in logarithms: then a hundredth of the volume is about what a
# front gains that becomes better by a hundredth in one objective all along.
_BEHIND = 1.0


class FrontGain:
    """Measures what points add to a front.

    Args:
        front: logarithms of what is known, the larger the better, `[members][objectives]`; at least one member.
    """

    def __init__(self, front: Sequence[Sequence[float]]) -> None:
        import numpy as np
        from scipy.stats import halfnorm, qmc

        members = np.array(front, dtype=np.float64)
        self._behind = members.min(axis=0) - _BEHIND
        # Evenly over the directions, as a rotated normal is; the sequence begins at 0, which is none.
        even = qmc.Halton(members.shape[1], scramble=False).fast_forward(1).random(_DIRECTIONS)
        rays = halfnorm.ppf(even)
        self._directions = rays / np.linalg.norm(rays, axis=1, keepdims=True)
        self._reach = self._reaches(members).max(axis=0)

    def share(self, points: "np.ndarray") -> "np.ndarray":
        """What each of `points` `[points, objectives]` alone adds to the volume, as a share of it, `[points]`."""
        import numpy as np

        return np.maximum(self._reaches(points) - self._reach, 0.0).mean(axis=1) / self._reach.mean()

    def _reaches(self, points: "np.ndarray") -> "np.ndarray":
        """`[points, directions]`: to the power that makes their mean a volume."""
        import numpy as np

        ahead = np.maximum(points - self._behind, 0.0)
        return (ahead[:, None, :] / self._directions).min(axis=2) ** points.shape[1]
