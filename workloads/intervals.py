"""Confidence limits of a share and of a mean when the observations come in clusters (the gaps of one request).

How far the clusters depend on each other is for the caller to say (see `workloads.dependence`). scipy is imported when
a limit is asked for.
"""

from collections.abc import Sequence
from math import sqrt


def share_low(met: float, total: float, alpha: float) -> float:
    """Exact lower limit of a share at one-sided level `1 - alpha` (Clopper and Pearson, 1934)."""
    from scipy.special import betaincinv

    return 0.0 if met <= 0 else float(betaincinv(met, total - met + 1, alpha))


def share_high(met: float, total: float, alpha: float) -> float:
    """Exact upper limit of a share at one-sided level `1 - alpha` (Clopper and Pearson, 1934)."""
    from scipy.special import betaincinv

    return 1.0 if met >= total else float(betaincinv(met + 1, total - met, 1 - alpha))


def effective_size(met: Sequence[int], total: Sequence[int]) -> float:
    """Number of independent observations that tell as much about the share as these clusters do.

    From Korn and Graubard (1998): the size at which a simple sample has the variance of the ratio
    `sum(met) / sum(total)`, reduced for the few clusters that the variance was estimated from. Where no variance can
    be seen (all met, or none) the clusters themselves are what is independent.

    Args:
        met: observations within the bound, per cluster.
        total: observations, per cluster, each at least 1.
    """
    from scipy.special import ndtri, stdtrit

    clusters, size = len(total), sum(total)
    if size == clusters:
        return size
    share = sum(met) / size
    error = _ratio_error(met, total)
    if clusters < 2 or error == 0:
        return clusters
    shrink = (ndtri(0.975) / stdtrit(clusters - 1, 0.975)) ** 2
    return float(min(size, max(1.0, shrink * share * (1 - share) / error**2)))


def mean_limits(
    sums: Sequence[float], counts: Sequence[int], alpha: float, dependence: float = 1.0
) -> tuple[float, float]:
    """One-sided limits at level `1 - alpha`, below and above, of the mean over all observations.

    Student's t with the standard error of the ratio `sum(sums) / sum(counts)` over clusters. Infinite for one cluster.

    Args:
        sums: sum of the observations, per cluster.
        counts: observations, per cluster, each at least 1.
        dependence: so many clusters tell as much as one that depends on no other.
    """
    from scipy.special import stdtrit

    clusters = len(counts)
    if clusters < 2:
        return float("-inf"), float("inf")
    mean = sum(sums) / sum(counts)
    freedom = max(1.0, clusters / dependence - 1)
    margin = float(stdtrit(freedom, 1 - alpha)) * sqrt(dependence) * _ratio_error(sums, counts)
    return mean - margin, mean + margin


def _ratio_error(sums: Sequence[float], counts: Sequence[int]) -> float:
    """Linearised standard error of `sum(sums) / sum(counts)` over clusters; 0 for one cluster."""
    clusters, size = len(counts), sum(counts)
    if clusters < 2:
        return 0.0
    ratio = sum(sums) / size
    spread = sum((y - ratio * n) ** 2 for y, n in zip(sums, counts, strict=True))
    return sqrt(spread * clusters / (clusters - 1)) / size
