"""How much less dependent requests tell than independent ones: requests that queue behind each other are late together.

A mean over n dependent values varies as much as one over n / D independent ones, D being the sum of the
autocorrelations over all lags (Bartlett, "On the theoretical specification and sampling properties of autocorrelated
time series", 1946). numpy and scipy are imported when it is asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# Exceedances of these quantiles are looked at, and of the one that is asked about where it is lower: an excursion of a
# queue may last longer, or shorter, the higher it goes.
_LEVELS = (0.8, 0.9, 0.95)
# Independent values are taken for dependent once in twenty times, ...
_SEEN = 1.645
# ... and dependent ones for less dependent than they are as often.
_CAUTION = 1.645
# Fewer values have no neighbours to speak of.
_FEWEST = 4
# Beyond this share of the sample, the lags in use say more of the sample than of the process.
_MOST_LAGS = 0.8


def dependence_of_share(values: "np.ndarray", share: float) -> "np.ndarray":
    """By how much the number of values is to be divided when a share of them is judged, at least 1.

    A sample with few misses, or none, shows nothing of how misses come in groups. So it is not the misses that are
    looked at but the exceedances of the sample's own quantiles, of which there are always some; the longest
    `correlation_time` of them counts.

    Args:
        values: in the order in which the requests came, infinite where there is none, `[..., requests]`.
        share: of the values within the bound that is asked for, such as 0.95.

    Returns:
        Float64 `[...]`.
    """
    import numpy as np

    n = values.shape[-1]
    if n < _FEWEST:
        return np.ones(values.shape[:-1])
    longest = np.ones(values.shape[:-1])
    ordered = np.sort(values, axis=-1)
    for level in (min(share, _LEVELS[0]), *_LEVELS[1:]):
        quantile = ordered[..., [int(level * (n - 1))]]
        above = values > quantile
        # Where more than that are equal to the largest, those are the exceedances.
        above = np.where(above.any(axis=-1, keepdims=True), above, values >= quantile)
        longest = np.maximum(longest, correlation_time(above.astype(np.float64)))
    return np.where(_follow_each_other(values), longest, 1.0)


def dependence_of_mean(values: "np.ndarray") -> "np.ndarray":
    """The same for their mean.

    Args:
        values: in the order in which the requests came, finite, `[..., requests]`.
    """
    import numpy as np

    if values.shape[-1] < _FEWEST:
        return np.ones(values.shape[:-1])
    return np.where(_follow_each_other(values), correlation_time(values), 1.0)


def correlation_time(series: "np.ndarray") -> "np.ndarray":
    """Upper 95 % limit of the sum of a series' autocorrelations over all lags, of either sign; at least 1.

    Summed as far as Geyer's initial monotone sequence goes ("Practical Markov chain Monte Carlo", Statistical Science
    7(4), 1992), and divided by the share of it that is left when the sample's own mean is taken away. The limit is that
    of a sum over a lag window (Priestley, "Spectral analysis and time series", 1981, section 6.2).

    Args:
        series: finite, `[..., n]`; of a constant one it is 1.
    """
    import numpy as np

    n = series.shape[-1]
    correlations = _autocorrelations(series)
    pairs = correlations[..., 0 : 2 * (n // 2) : 2] + correlations[..., 1 : 2 * (n // 2) : 2]
    within = np.logical_and.accumulate(pairs > 0, axis=-1)
    total = 2 * np.minimum.accumulate(np.where(within, pairs, 0.0), axis=-1).sum(axis=-1) - 1
    lags = np.clip((4 * within.sum(axis=-1) - 1) / n, 0.0, _MOST_LAGS)
    return np.maximum(1.0, total / (1 - lags) * (1 + _CAUTION * np.sqrt(2 * lags)))


def _follow_each_other(values: "np.ndarray") -> "np.ndarray":
    """Whether ranks are correlated with their neighbour's by more than chance, bool `[...]`."""
    import numpy as np
    from scipy.stats import rankdata

    return _autocorrelations(rankdata(values, axis=-1))[..., 1] * np.sqrt(values.shape[-1]) > _SEEN


def _autocorrelations(series: "np.ndarray") -> "np.ndarray":
    """At lags 0 to n - 1, `[..., n]`; zeros for a constant series."""
    import numpy as np
    from scipy.fft import irfft, next_fast_len, rfft

    n = series.shape[-1]
    padded = next_fast_len(2 * n, real=True)
    centred = series - series.mean(axis=-1, keepdims=True)
    largest = np.abs(centred).max(axis=-1, keepdims=True)
    spectrum = rfft(centred / np.where(largest > 0, largest, 1.0), padded, axis=-1)
    products = irfft(spectrum.real**2 + spectrum.imag**2, padded, axis=-1)[..., :n]
    size = products[..., :1]
    return np.where(largest > 0, products / np.where(size > 0, size, 1.0), 0.0)
