"""The highest rate that one setting holds: a bracket that is widened, then halved. Pure logic, no measuring."""

import math
from dataclasses import dataclass
from typing import Protocol

FIRST_STEP = 1.2
LARGEST_STEP = 4.0


def readable(rate: float) -> float:
    """The rate to three digits: what a person would type, and far finer than what a run can tell."""
    return float(f"{rate:.3g}")


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
class RateRace:
    """Whether a setting beats the best rate so far, in as few runs as that takes.

    It must hold a rate `step` above the best; one that does climbs on. A setting that does not is out after a single
    run: how far below the best its own limit lies would cost runs and change nothing.

    Attributes:
        best: highest rate held by any setting so far.
        step: ratio from one rate to the next.
        held, failed: as in `RateSearch`.
    """

    best: float
    step: float = 1.1
    max_climbs: int = 4
    held: float | None = None
    failed: float | None = None
    runs: int = 0

    @property
    def is_over(self) -> bool:
        """The race is decided."""
        return self.failed is not None or self.runs >= self.max_climbs

    def next_rate(self) -> float:
        """The rate to try next, unless the race is over."""
        return readable((self.best if self.held is None else self.held) * self.step)

    def record(self, rate: float, *, held: bool) -> None:
        """Take in the answer for `rate`."""
        self.runs += 1
        if held:
            self.held = rate
        else:
            self.failed = rate


@dataclass(slots=True)
class PredictedRate(RateSearch):
    """Begins at the rate that a setting is predicted to hold, and gives up when that is no better than the best so far.

    Attributes:
        best: highest rate held by any setting so far; None for none.
    """

    max_runs: int = 5
    best: float | None = None

    @property
    def is_over(self) -> bool:
        """The limit is bracketed, or known not to lie above the best."""
        beaten = self.best is not None and self.failed is not None and self.failed <= FIRST_STEP * self.best
        return RateSearch.is_over.fget(self) or (beaten and self.held is None)  # type: ignore[attr-defined]


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
