"""The chance that a setting fails, learnt from settings that did: no run is owed to what is bound to break."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tuner.settings import NAMES, Settings
from tuner.space import SearchSpace
from tuner.trial import Trial
from tuner.unit_cube import unit_point

if TYPE_CHECKING:
    from tuner.strategies.base import Search

RISKY = 0.5
"""From this risk on a setting is not worth a run."""

# Settings refused for too little memory: more of it mends them, and finding out costs nothing.
_MENDED_BY_MORE = frozenset(("KVCacheTooSmall", "SwapSpaceTooSmall"))
_RESOURCES = ("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "chunk_size")
# A failure that was seen once says a lot of what takes even more, and is no proof: devices have bad moments.
_RISK_BEYOND_A_FAILURE = 0.9
_PRIOR_RISK = 0.05
# Neighbours on a grid of five levels, a quarter of a scale apart, have some two thirds of a vote.
_REACH = 0.3


class FailureModel:
    """How likely settings are to fail, by their neighbours and by what they take.

    The neighbours vote with Gaussian weights by their distance in the unit cube (Nadaraya, Theory Probab. Appl. 1964;
    Watson, Sankhya A 1964), beside one vote for a small chance, so that a failure far away says little. Besides, what
    takes at least as much of everything as a setting that failed, all else equal, fails too: memory and load only grow.
    That rule drops a failure where a setting that takes even more was measured without one.

    Args:
        space: what is searched; it gives the distances.
        ok: settings that were measured without failing.
        failed: settings that ran out of memory or crashed.

    Example:
        >>> space = SearchSpace({"max_num_seqs": Range(8, 512)}, Settings())
        >>> FailureModel(space, [Settings()], [Settings(max_num_seqs=300)]).risk(Settings(max_num_seqs=400))
        0.9
    """

    def __init__(self, space: SearchSpace, ok: Iterable[Settings], failed: Iterable[Settings]) -> None:
        self._space = space
        served, failing = list(ok), list(failed)
        self._failed = bool(failing)
        self._votes = [(unit_point(space, s), 0.0) for s in served] + [(unit_point(space, s), 1.0) for s in failing]
        self._limits = [s for s in failing if not any(takes_at_least(other, s) for other in served)]

    def risk(self, settings: Settings) -> float:
        """The chance, from 0 to 1, that these settings fail; 0 while nothing has."""
        if not self._failed:
            return 0.0
        beyond = any(takes_at_least(settings, limit) for limit in self._limits)
        return max(self._vote(settings), _RISK_BEYOND_A_FAILURE if beyond else 0.0)

    def _vote(self, settings: Settings) -> float:
        point = unit_point(self._space, settings)
        weights = [math.exp(-0.5 * (math.dist(point, other) / _REACH) ** 2) for other, _ in self._votes]
        failing = sum(w * failed for w, (_, failed) in zip(weights, self._votes, strict=True))
        return (_PRIOR_RISK + failing) / (1.0 + sum(weights))


def failure_model(search: "Search") -> FailureModel:
    """What a study's trials, and the studies it started from, say of failures."""
    ended = [trial for trial in search.trials if trial.state != "running"]
    ok = [trial.settings for trial in ended if trial.runs and trial.error_type is None]
    return FailureModel(search.space, ok, [*(t.settings for t in ended if broke(t.error_type)), *search.prior.failed])


def broke(error_type: str | None) -> bool:
    """Whether a trial with that `error_type` ran out of memory or crashed, so that taking more would not mend it."""
    return error_type is not None and error_type not in _MENDED_BY_MORE


def unmeasured_failure(settings: Settings) -> Trial:
    """What a sampler is told of settings that are known to fail without a trial of this study."""
    return Trial(-1, "search", settings, state="failed", error="expected to fail")


def takes_at_least(settings: Settings, other: Settings) -> bool:
    """Whether settings take as much of every resource as others or more, and are the same in all else."""
    same = all(getattr(settings, name) == getattr(other, name) for name in NAMES if name not in _RESOURCES)
    return same and all(_amount(settings, name) >= _amount(other, name) for name in _RESOURCES)


def _amount(settings: Settings, name: str) -> float:
    # No limit on chunks is the largest chunk.
    return getattr(settings, name) or math.inf
