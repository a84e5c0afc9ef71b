"""How many tokens: distributions of prompt and output lengths, always whole numbers between two known bounds.

One draw makes one length, whatever the distribution, so that request i keeps its place in the stream.
"""

from math import erf, exp, log, sqrt
from typing import ClassVar, Self

import numpy as np
from numpy.random import RandomState
from pydantic import Field, model_validator

from workloads.kinds import Kind, registry

# Longer than any context window; beyond it lies a slip of the finger.
LONGEST_TOKENS = 10_000_000


class Lengths(Kind):
    """A distribution of lengths in tokens."""

    @property
    def max_tokens(self) -> int:
        """The longest there can be."""
        raise NotImplementedError

    @property
    def mean_tokens(self) -> float:
        """The expected length."""
        raise NotImplementedError

    def draw(self, rng: RandomState, count: int) -> np.ndarray:
        """The next `count` lengths of the stream, int64 `[count]`."""
        raise NotImplementedError


class Fixed(Lengths):
    """Always the same: `fixed:128`, or only `128`."""

    kind: ClassVar[str] = "fixed"
    example: ClassVar[str] = "fixed:128"
    positional: ClassVar[str | None] = "tokens"

    tokens: int = Field(ge=1, le=LONGEST_TOKENS)

    def __str__(self) -> str:
        return f"fixed:{self.tokens}"

    @property
    def max_tokens(self) -> int:
        return self.tokens

    @property
    def mean_tokens(self) -> float:
        return float(self.tokens)

    def draw(self, rng: RandomState, count: int) -> np.ndarray:
        return np.full(count, self.tokens, dtype=np.int64)


class Uniform(Lengths):
    """Every whole number from `low` to `high`, both included, is as likely as any other."""

    kind: ClassVar[str] = "uniform"
    example: ClassVar[str] = "uniform:500..2000"

    low: int = Field(ge=1)
    high: int = Field(ge=1, le=LONGEST_TOKENS)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}")
        return self

    @property
    def max_tokens(self) -> int:
        return self.high

    @property
    def mean_tokens(self) -> float:
        return (self.low + self.high) / 2

    def draw(self, rng: RandomState, count: int) -> np.ndarray:
        return self.low + np.floor(rng.random_sample(count) * (self.high - self.low + 1)).astype(np.int64)


class LogNormal(Lengths):
    """Log-normal, rounded and clipped to `low..high`, as lengths of real traffic tend to be: a body and a long tail.

    Clipped, not drawn again: each length costs one draw, and bounds far out in a tail cost no endless search. What
    lay outside gathers at the bounds, and `mean_tokens` counts it there.

    Attributes:
        median, mean: one of the two, of the distribution before clipping.
        sigma: standard deviation of the logarithm.
        low, high: shortest and longest.
    """

    kind: ClassVar[str] = "lognormal"
    example: ClassVar[str] = "lognormal:median=800,sigma=0.8,low=16,high=4000"

    median: float | None = Field(default=None, gt=0)
    mean: float | None = Field(default=None, gt=0)
    sigma: float = Field(gt=0, le=10)
    low: int = Field(default=1, ge=1)
    high: int = Field(ge=1, le=LONGEST_TOKENS)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.median is None) == (self.mean is None):
            raise ValueError("give either median or mean")
        if self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}")
        return self

    @property
    def _mu(self) -> float:
        return log(self.median) if self.median is not None else log(self.mean or 0) - self.sigma**2 / 2

    @property
    def max_tokens(self) -> int:
        return self.high

    @property
    def mean_tokens(self) -> float:
        """Expectation of the clipped distribution, rounding left out of account."""
        mu, sigma = self._mu, self.sigma

        def below(x: float, shift: float = 0.0) -> float:
            return 0.5 * (1 + erf((log(x) - mu - shift) / (sigma * sqrt(2))))

        inside = exp(mu + sigma**2 / 2) * (below(self.high, sigma**2) - below(self.low, sigma**2))
        return self.low * below(self.low) + inside + self.high * (1 - below(self.high))

    def draw(self, rng: RandomState, count: int) -> np.ndarray:
        lengths = np.exp(self._mu + self.sigma * rng.standard_normal(count))
        return np.clip(np.rint(lengths), self.low, self.high).astype(np.int64)


LENGTHS: dict[str, type[Lengths]] = registry(Fixed, Uniform, LogNormal)
"""Kind to class; a new distribution is one class and one name here."""
