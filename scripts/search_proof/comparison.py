"""What many studies show together: regret against time, when it is small, and whether one strategy's is smaller."""

from collections.abc import Mapping, Sequence
from typing import Any

from scripts.search_proof.capacity import Truth
from scripts.search_proof.pairs import PAIRS
from scripts.search_proof.study import SEARCHED_SHARE, Played, grid_s
from scripts.search_proof.trajectory import can_be_timed, regrets

SUBJECT = "twin"
SMALL_REGRET = 0.02
MOST_TIME = 0.05
# Looked at besides, since few have the time for a twentieth of a grid.
EARLIER = (0.01, 0.015, 0.02, 0.03)
# Shares of the grid's time at which the regret is looked at, even on a logarithmic scale, and those that count.
SHARES = tuple(sorted({MOST_TIME, *EARLIER, *(SEARCHED_SHARE * 10 ** (-i / 24) for i in range(37))}))

Study = tuple[str, int]
"""Pair and seed."""


def at_start(played: Sequence[Played], truths: Mapping[str, Truth], start_s: float) -> dict[str, Any]:
    """Curves of regret and tests, for starts of one length; times are shares of what the whole grid takes."""
    curves: dict[str, dict[Study, list[float]]] = {}
    for p in played:
        if p.job.start_s == start_s or (p.job.start_s == 0 and can_be_timed(p, start_s)):
            grid = grid_s(PAIRS[p.job.pair], start_s)
            curve = regrets(p, truths[p.job.pair], start_s, [share * grid for share in SHARES])
            curves.setdefault(p.job.strategy, {})[p.job.pair, p.job.seed] = curve
    strategies = {
        strategy: _figures(list(by_study.values()))
        | {"pairs": {name: _figures([c for (pair, _), c in by_study.items() if pair == name]) for name in truths}}
        for strategy, by_study in curves.items()
    }

    def tests_at(share: float) -> dict[str, Any]:
        place = SHARES.index(share)
        then = {s: {study: curve[place] for study, curve in by_study.items()} for s, by_study in curves.items()}
        return _tests(then, list(truths)) if SUBJECT in then else {}

    earlier = {
        f"{share:g}": {
            "medians": {s: figures["median"][SHARES.index(share)] for s, figures in strategies.items()},
            "p_holm": {other: test["p_holm"] for other, test in tests_at(share).items()},
        }
        for share in (*EARLIER, MOST_TIME)
    }
    return {"strategies": strategies, "tests": tests_at(MOST_TIME), "earlier": earlier}


def _figures(curves: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Of the curves `[studies, shares]`."""
    import numpy as np

    values, limit = np.array(curves), SHARES.index(MOST_TIME)
    median = np.median(values, axis=0).tolist()
    return {
        "median": median,
        "worst": values.max(axis=0).tolist(),
        "median_at_limit": median[limit],
        "mean_at_limit": float(values[:, limit].mean()),
        "worst_at_limit": float(values[:, limit].max()),
        "small_from": small_from(median),
    }


def _tests(final: Mapping[str, Mapping[Study, float]], pairs: Sequence[str]) -> dict[str, Any]:
    """Whether the regret of `SUBJECT` is smaller than that of each other strategy, in the same studies."""
    ours = final[SUBJECT]
    p_values = {other: paired_p(ours, theirs) for other, theirs in final.items() if other != SUBJECT}
    corrected = holm(p_values)
    return {
        other: {
            "p": p,
            "p_holm": corrected[other],
            "studies": len(ours.keys() & final[other].keys()),
            "pairs": {name: paired_p(_of(ours, name), _of(final[other], name)) for name in pairs},
        }
        for other, p in p_values.items()
    }


def _of(values: Mapping[Study, float], pair: str) -> dict[Study, float]:
    return {study: value for study, value in values.items() if study[0] == pair}


def small_from(medians: Sequence[float]) -> float | None:
    """The share of the grid's time from which the regret stays small; None where it does not."""
    large = [i for i, regret in enumerate(medians) if regret > SMALL_REGRET]
    first = large[-1] + 1 if large else 0
    return SHARES[first] if first < len(SHARES) else None


def paired_p(ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> float | None:
    """Whether our regrets are smaller in the same studies: Wilcoxon's signed-rank test, one-sided.

    Ties are kept in the ranking (Pratt, "Remarks on zeros and ties in the Wilcoxon signed rank procedures", 1959), so
    that studies in which both end at the same point count against a difference.

    Returns:
        None with nothing to compare.
    """
    from scipy.stats import wilcoxon

    differences = [ours[study] - theirs[study] for study in ours if study in theirs]
    if not any(differences):
        return None if not differences else 1.0
    return float(wilcoxon(differences, alternative="less", zero_method="pratt").pvalue)


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """The p-values of tests that are made together (Holm, Scandinavian Journal of Statistics 6(2), 1979)."""
    corrected: dict[str, float | None] = dict.fromkeys(p_values)
    order = sorted((p, name) for name, p in p_values.items() if p is not None)
    highest = 0.0
    for place, (p, name) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - place) * p))
        corrected[name] = highest
    return corrected
