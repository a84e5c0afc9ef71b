"""The luck of the traffic: the few requests that all runs of a study see are kinder to some settings than to others.

A twin plays any traffic. Settings are looked for under other requests than those of the runs, and what it says of one
setting under the study's own traffic beside what it says under much more of it is that setting's luck.
"""

import math
from collections.abc import MutableMapping

from tuner.settings import Settings
from tuner.twin.twin import RUNG, Played, Twin

SCANNED_REQUESTS, MANY_REQUESTS = 200, 600
# Far from the seeds of the search and of the confirmation.
_SCANNED_SEED, _MANY_SEED = 500_000, 500_001


class Traffic:
    """A twin under the study's traffic, under some other, and under much of it; all settings at the rates they hold.

    Args:
        same: the twin under the study's own traffic.
        luck: by settings, see `Trial.luck`; what is found out is added.

    Attributes:
        scanned: the twin under other traffic, to look for settings.
    """

    def __init__(self, same: Twin, luck: MutableMapping[Settings, float]) -> None:
        self.same, self.luck = same, luck
        seed = same.load.seed
        self.scanned = same.under(seed + _SCANNED_SEED, SCANNED_REQUESTS)
        self._many = same.under(seed + _MANY_SEED, MANY_REQUESTS)

    def limit(self, settings: Settings, rate: float, least: float | None) -> float | None:
        """Logarithm of the rate that settings hold under much traffic; None where they hold none that matters.

        Args:
            rate: one that they may hold, to begin with.
            least: what must be held to be of interest; None for whatever it is.
        """
        if settings in self.luck:
            same = self.same.climb(settings, rate)
            return None if same is None or not same.held else log_limit(same) - self.luck[settings]
        many = self._many.climb(settings, rate if least is None else least, down=least is None)
        if many is None or many.rate is None:
            return None
        same = self.same.climb(settings, many.rate)
        if same is not None and same.held:
            self.luck[settings] = log_limit(same) - log_limit(many)
        return log_limit(many)


def log_limit(played: Played) -> float:
    """Logarithm of a setting's limit, which lies between the rung that it holds and the one above."""
    assert played.rate is not None
    return math.log(played.rate * math.sqrt(RUNG))
