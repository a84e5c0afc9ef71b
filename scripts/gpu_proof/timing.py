"""How long device work takes, and how much that differs."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Spread:
    """Several measurements of one figure."""

    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def rate(self, amount: float) -> "Spread":
        """`amount` per second, where these are seconds."""
        return Spread(amount / self.median, amount / self.high, amount / self.low, self.repeats)


def seconds_per_call(call: Callable[[], object], device: torch.device, *, seconds: float, repeats: int) -> Spread:
    """Time `call` by the device's own events, on the CPU by the clock.

    Args:
        seconds: length of one measurement, with as many calls as that takes; one comes before, for the clocks.
        repeats: measurements.
    """
    call()
    calls = max(1, math.ceil(seconds / max(_elapsed_s(call, device, 1), 1e-7)))
    _elapsed_s(call, device, calls)
    return Spread.of([_elapsed_s(call, device, calls) / calls for _ in range(repeats)])


def _elapsed_s(call: Callable[[], object], device: torch.device, calls: int) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3
