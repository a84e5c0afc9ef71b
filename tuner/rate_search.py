"""The highest rate that one setting holds: a bracket that is widened, then halved. Pure logic, no measuring."""

import math
from dataclasses import dataclass, field
from typing import Protocol

FIRST_STEP = 1.2
LARGEST_STEP = 4.0
# A smaller lead than this is not worth a run, and hardly told from none by one.
LEAD = 1.05
# A prediction is tried this much lower: what is held bounds the limit from the side that counts.
CAUTION = 1.05
STEP_BELOW = 1.1


def readable(rate: float) -> float:
    """The rate to three digits: what a person would type, and far finer than what a run can tell."""
    return float(f"{rate:.3g}")


def step_below(rate: float) -> float:
    """Where to look next for a rate that holds when this one, once held, does not any more."""
    return readable(rate / STEP_BELOW)


class RateStrategy(Protocol):
    """Which rates to measure a setting at."""

    @property
    def is_over(self) -> bool: ...

    def next_rate(self) -> float | None: ...

    def record(self, rate: float, *, held: bool) -> None: ...


@dataclass(slots=True)
class RateSearch:
    """Bisection for the highest rate held, on a logarithmic scale.

    The answers come from noisy runs, so a fine bracket is no truth: it ends within `tolerance`, and what it found is
    measured again before anything is claimed from it.

    Attributes:
        start: first rate to try, requests per second.
        tolerance: ratio of the bracket's ends at which it is narrow enough.
        max_runs: most rates to try.
        held: highest rate that was held.
        failed: lowest rate above it that was not.
        step: ratio to the next rate while there is no bracket.
    """

    start: float
    tolerance: float = 1.12
    max_runs: int = 7
    held: float | None = None
    failed: float | None = None
    runs: int = 0
    step: float = FIRST_STEP

    @property
    def is_over(self) -> bool:
        """Nothing more is to be tried."""
        narrow = self.held is not None and self.failed is not None and self.failed / self.held <= self.tolerance
        return narrow or self.runs >= self.max_runs

    def next_rate(self) -> float:
        """The rate to try next, unless the search is over."""
        if self.held is None:
            return readable(self.start if self.failed is None else self.failed / self.step)
        return readable(self.held * self.step if self.failed is None else math.sqrt(self.held * self.failed))

    def record(self, rate: float, *, held: bool) -> None:
        """Take in the answer for `rate`."""
        self.runs += 1
        if self.runs > 1:
            # A start that is near is bracketed finely at once, one that is far off in ever larger steps.
            self.step = min(self.step**2, LARGEST_STEP)
        if held:
            self.held = rate if self.held is None else max(self.held, rate)
        else:
            self.failed = rate if self.failed is None else min(self.failed, rate)
        if self.held is not None and self.failed is not None and self.failed <= self.held:
            # Noise contradicted itself: a lower rate failed after a higher one had held. Believe the failure.
            self.held = None


@dataclass(slots=True)
class RateRace(RateSearch):
    """Whether a setting beats the best rate so far, and by how much, in as few runs as that takes.

    It begins a little above the best, or at the rate that the setting is predicted to hold. One that holds climbs on to
    its own limit. One that is known not to lead is out: how far below the best its limit lies would cost runs and
    change nothing.

    Attributes:
        best: highest rate held by any setting so far.
    """

    tolerance: float = 1.06
    max_runs: int = 5
    step: float = 1.1
    best: float = field(kw_only=True)

    @classmethod
    def against(cls, best: float, predicted: float | None = None) -> "RateRace":
        """The race against `best` of a setting that is predicted to hold a rate; None where nothing is predicted."""
        return cls(max(LEAD * best, (predicted or 0.0) / CAUTION), best=best)

    @property
    def is_over(self) -> bool:
        """The limit is bracketed, or known not to lie above the best."""
        beaten = self.failed is not None and self.failed <= self.tolerance * self.best
        return RateSearch.is_over.fget(self) or (beaten and self.held is None)  # type: ignore[attr-defined]

    def next_rate(self) -> float:
        """The rate to try next, unless the race is over."""
        return max(readable(LEAD * self.best), RateSearch.next_rate(self))


@dataclass(slots=True)
class FixedRate:
    """The one rate that the user asked for; None for a closed loop, which has no rate."""

    rate: float | None
    is_over: bool = False

    def next_rate(self) -> float | None:
        """The asked rate."""
        return self.rate

    def record(self, rate: float | None, *, held: bool) -> None:
        """Take in the answer; there is nothing more to ask."""
        self.is_over = True
