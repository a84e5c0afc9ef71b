"""Evidence about a share that may be looked at again and again while it comes in.

A bet against "misses come at least as often as allowed" multiplies its stake, at each observation, by the likelihood
of a lower rate over that of the allowed one. Were the rate as high as that, the stake would not be expected to grow,
and so it exceeds 1 / alpha at any time with a probability of alpha at most (Ville's inequality). Spread over all lower
rates by a prior it is a mixture martingale (Robbins, "Statistical methods related to the law of the iterated
logarithm", Annals of Mathematical Statistics 41(5), 1970; Howard, Ramdas, McAuliffe and Sekhon, "Time-uniform,
nonparametric, nonasymptotic confidence sequences", Annals of Statistics 49(2), 2021; as bets: Waudby-Smith and Ramdas,
"Estimating means of bounded random variables by betting", Journal of the Royal Statistical Society B 86(1), 2024).

Of dependent observations the effective numbers are put in, which are estimates and change from look to look; then the
bound is no theorem, and `scripts/search_proof/verdicts.py` says what is left of it. scipy is imported when a stake is
asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# Of Jeffreys: most of it lies near 0, where the miss rates of settings that hold a bound with ease are.
_PRIOR = 0.5


def stake_on_fewer(misses: "np.ndarray | float", size: "np.ndarray | float", allowed: float) -> "np.ndarray":
    """What a stake of 1 has become that was set on misses being rarer than allowed.

    Args:
        misses, size: misses among so many independent observations, `[...]`; need not be whole.
        allowed: share of misses, above 0 and below 1.

    Returns:
        Float64 `[...]`; at least `1 / alpha` at any time with a probability of at most `alpha` where misses are as
        frequent as allowed, or more so.
    """
    return _stake(misses, size - misses, allowed)


def stake_on_more(misses: "np.ndarray | float", size: "np.ndarray | float", allowed: float) -> "np.ndarray":
    """The same, set on misses being more frequent than allowed."""
    return _stake(size - misses, misses, 1.0 - allowed)


def _stake(ones: "np.ndarray | float", zeros: "np.ndarray | float", limit: float) -> "np.ndarray":
    """Bayes factor of rates of ones below `limit`, by the prior cut off there, over `limit` itself."""
    import numpy as np
    from scipy.special import betainc, betaln

    a, b = _PRIOR + ones, _PRIOR + zeros
    with np.errstate(divide="ignore", over="ignore"):
        below = np.log(betainc(a, b, limit)) - np.log(betainc(_PRIOR, _PRIOR, limit))
        mixture = betaln(a, b) - betaln(_PRIOR, _PRIOR)
        return np.exp(below + mixture - ones * np.log(limit) - zeros * np.log1p(-limit))
