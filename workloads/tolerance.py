"""Whether a bound lies so far above all latencies that their dependence does not matter.

Counts see no distances: to them it is all one whether the slowest request took half of the bound or just under it.
Latencies are close to lognormal, so the distance tells too. The limit is the one-sided tolerance limit of normal
logarithms for an effective number of requests (Owen, "A survey of properties and applications of the noncentral
t-distribution", Technometrics 10(3), 1968).
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from workloads.dependence import dependence_of_mean, dependence_of_share

# A spread cannot be told from fewer.
_FEWEST = 2.5
_FEWEST_REQUESTS = 10


def lies_far_above(bound: float, values: Sequence[float], share: float, alpha: float) -> bool:
    """Whether at least a share of all requests is within a bound, as far as lognormal latencies let one say.

    Args:
        bound: above 0.
        values: in the order of arrival, in the unit of the bound; with one that is not above 0 nothing is said.
        share: of all requests, such as 0.95.
        alpha: chance to say so wrongly.
    """
    import numpy as np

    if len(values) < _FEWEST_REQUESTS or min(values) <= 0 or max(values) > bound:
        return False
    logs = np.log(np.asarray(values, dtype=np.float64))
    dependence = max(float(dependence_of_share(logs, share)), float(dependence_of_mean(logs)))
    size = max(_FEWEST, len(logs) / dependence)
    return float(logs.mean() + _factor(round(size, 1), share, alpha) * logs.std(ddof=1)) <= math.log(bound)


@lru_cache(maxsize=4096)
def _factor(size: float, share: float, alpha: float) -> float:
    """Standard deviations above the mean at which the limit lies, for so many requests."""
    from scipy.stats import nct, norm

    return float(nct.ppf(1 - alpha, size - 1, norm.ppf(share) * math.sqrt(size))) / math.sqrt(size)
