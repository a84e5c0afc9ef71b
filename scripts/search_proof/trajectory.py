"""What a study would have recommended at any time, in regret."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from scripts.search_proof.capacity import Truth
from scripts.search_proof.study import Played


def run_ends_s(played: Played, start_s: float) -> list[float]:
    """When each run of a study ended, had every start of the engine taken `start_s`.

    What the strategy thought is charged in seconds of a core of this machine, in equal parts to all runs.
    """
    thought_s = played.thinking_s / max(1, len(played.costs))
    return list(accumulate(cost.seconds + thought_s + (start_s if cost.started else 0.0) for cost in played.costs))


def can_be_timed(played: Played, start_s: float) -> bool:
    """Whether the study would have gone the same way with starts of that length."""
    return played.job.start_s == start_s or not played.looked_at_time


def regrets(played: Played, truth: Truth, start_s: float, times_s: Sequence[float]) -> list[float]:
    """The regret of the recommendation at each of these times; 1 while there was none.

    Raises:
        ValueError: the strategy looked at the time, and starts took another.
    """
    if not can_be_timed(played, start_s):
        raise ValueError(f"{played.job.key} cannot be timed with starts of {start_s:g} s: its strategy saw the time")
    ends = [0.0, *run_ends_s(played, start_s)]
    changes = [ends[runs] for runs, _ in played.bests]
    worth = [1.0, *(truth.regret(point) for _, point in played.bests)]
    return [worth[bisect_right(changes, time_s)] for time_s in times_s]
