"""When requests arrive.

Open loops make their schedule of draws at unit rate, scaled by the asked rate afterwards: the same seed at another
rate gives the same pattern, faster or slower (common random numbers), which makes runs comparable request by request.
Warm-up and window each get exactly as many arrivals as the rate asks for: a Poisson process, given its count. Without
that a short window's load would be a matter of luck, a fifth more or less in 30 requests, and so would every result.
A closed loop has no schedule: it says how many requests are under way at a time.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Self

import numpy as np
from numpy.random import RandomState
from pydantic import Field, model_validator

from workloads.kinds import Kind, registry

_BATCH = 1024


class Arrivals(Kind):
    """How requests arrive."""


class OpenLoop(Arrivals):
    """Requests come at their time, whether earlier ones were answered or not. The rate is the long-run mean."""

    def gaps(self, rng: RandomState, count: int) -> np.ndarray:
        """The next `count` gaps between arrivals at rate 1, mean 1, float64 `[count]`."""
        raise NotImplementedError

    @property
    def dispersion(self) -> float:
        """Variance of the number of arrivals over its mean, for long spans; 1 for Poisson."""
        raise NotImplementedError

    @property
    def is_steady(self) -> bool:
        """The mean rate is the same at all times, so that a part of a run shows what the whole would."""
        return True

    def seconds(self, work: float) -> float:
        """The time by which `work` seconds' worth of the mean rate has come. Its inverse is `work_until`."""
        return work

    def work_until(self, t_s: float) -> float:
        """Expected arrivals until `t_s`, over the mean rate."""
        return t_s

    def offsets_ns(self, rate: float, rng: RandomState, segments_s: Sequence[float] = ()) -> Iterator[int]:
        """The endless schedule at `rate` requests per second, in nanoseconds from its start, never falling.

        Args:
            rng: of the gaps.
            segments_s: lengths of the first parts of the schedule, in seconds. Each holds the number of arrivals that
                the rate asks for, rounded: gaps are drawn, one more than arrivals, and stretched to fill it. With
                exponential gaps that is a Poisson process given its count (its arrivals are then uniform order
                statistics); `vllm bench serve` stretches its gaps to their expected sum likewise.
        """
        start_s = 0.0
        for length_s in segments_s:
            start, end = self.work_until(start_s), self.work_until(start_s + length_s)
            count = round(rate * end) - round(rate * start)
            reached = np.cumsum(self.gaps(rng, count + 1))
            start_s += length_s
            last_ns = round(start_s * 1e9) - 1  # a last gap may be too short for a nanosecond
            for share in (reached[:-1] / reached[-1]).tolist():
                yield min(round(self.seconds(start + share * (end - start)) * 1e9), last_ns)
        arrived = rate * self.work_until(start_s)
        while True:
            for gap in self.gaps(rng, _BATCH).tolist():
                arrived += gap
                yield round(self.seconds(arrived / rate) * 1e9)


class Poisson(OpenLoop):
    """Independent arrivals: exponential gaps."""

    kind: ClassVar[str] = "poisson"
    example: ClassVar[str] = "poisson"

    @property
    def dispersion(self) -> float:
        return 1.0

    def gaps(self, rng: RandomState, count: int) -> np.ndarray:
        return rng.standard_exponential(count)


class Gamma(OpenLoop):
    """Gamma-distributed gaps with vLLM's burstiness as the shape: 1 is Poisson, below it bursts, above it is even.

    The squared coefficient of variation of the gaps is 1 / burstiness.
    """

    kind: ClassVar[str] = "gamma"
    example: ClassVar[str] = "gamma:burstiness=0.5"
    positional: ClassVar[str | None] = "burstiness"

    burstiness: float = Field(gt=0, le=1000)

    @property
    def dispersion(self) -> float:
        return 1.0 / self.burstiness

    def gaps(self, rng: RandomState, count: int) -> np.ndarray:
        return rng.standard_gamma(self.burstiness, count) / self.burstiness


class Constant(OpenLoop):
    """Equal gaps."""

    kind: ClassVar[str] = "constant"
    example: ClassVar[str] = "constant"

    @property
    def dispersion(self) -> float:
        return 0.0

    def gaps(self, rng: RandomState, count: int) -> np.ndarray:
        return np.ones(count)


class Spikes(OpenLoop):
    """A plateau with spikes: Poisson arrivals whose rate is `multiplier` times the plateau's for `length_s` seconds.

    The rate asked for is the mean over plateau and spikes, so that it compares with other arrivals; the plateau lies
    below it. A spike ends each period of `every_s` seconds. Unit-rate gaps are mapped through the inverse of the
    cumulative rate (time rescaling), so spikes keep their place in time at every rate.
    """

    kind: ClassVar[str] = "spikes"
    example: ClassVar[str] = "spikes:multiplier=4,length_s=2,every_s=20"

    multiplier: float = Field(gt=1, le=1000)
    length_s: float = Field(gt=0)
    every_s: float = Field(gt=0)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.length_s >= self.every_s:
            raise ValueError(f"length_s={self.length_s} is not below every_s={self.every_s}")
        return self

    @property
    def dispersion(self) -> float:
        return 1.0

    @property
    def is_steady(self) -> bool:
        return False

    @property
    def _plateau(self) -> float:
        """The plateau's rate over the mean rate."""
        return self.every_s / (self.every_s + (self.multiplier - 1) * self.length_s)

    def gaps(self, rng: RandomState, count: int) -> np.ndarray:
        return rng.standard_exponential(count)

    def seconds(self, work: float) -> float:
        periods, work = divmod(work, self.every_s)
        calm_s = self.every_s - self.length_s
        calm_work = self._plateau * calm_s
        if work <= calm_work:
            return periods * self.every_s + work / self._plateau
        return periods * self.every_s + calm_s + (work - calm_work) / (self._plateau * self.multiplier)

    def work_until(self, t_s: float) -> float:
        periods, t_s = divmod(t_s, self.every_s)
        calm_s = self.every_s - self.length_s
        in_spike_s = max(0.0, t_s - calm_s)
        return periods * self.every_s + self._plateau * (min(t_s, calm_s) + self.multiplier * in_spike_s)


class ClosedLoop(Arrivals):
    """A number of requests under way at all times: as one ends, the next begins.

    `closed:16` keeps 16; `closed:8..32,period_s=10` draws a new number between the two every 10 s.
    """

    kind: ClassVar[str] = "closed"
    example: ClassVar[str] = "closed:16"
    positional: ClassVar[str | None] = "concurrency"

    concurrency: int | None = Field(default=None, ge=1)
    low: int | None = Field(default=None, ge=1)
    high: int | None = Field(default=None, ge=1)
    period_s: float = Field(default=10.0, gt=0)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.concurrency is None) == (self.low is None) or (self.low is None) != (self.high is None):
            raise ValueError("give either one number or low..high")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}")
        return self

    def levels(self, rng: RandomState) -> Iterator[int]:
        """The endless sequence of numbers under way, one per period."""
        low, high = self.low or self.concurrency, self.high or self.concurrency
        assert low is not None
        assert high is not None
        while True:
            yield low + int(rng.random_sample() * (high - low + 1))


ARRIVALS: dict[str, type[Arrivals]] = registry(Poisson, Gamma, Constant, Spikes, ClosedLoop)
"""Kind to class; a new arrival process is one class and one name here."""
