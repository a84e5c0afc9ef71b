"""How long steps take on the made-up devices of the proof: a law of its own, unlike the one that the twin learns.

The twin (`engine.executor.step_times`) adds terms up, with a bend or two over the tokens. Here the larger of arithmetic
and memory traffic counts, work is padded to sizes that kernels like, prompts that share a step with decodes disturb
them, and the host pays more than in proportion. What the search finds by the twin is thus found in spite of it.
"""

import math
import random
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from engine.executor.base import MemoryProfile
from engine.executor.simulated import SimulatedExecutor
from engine.model.arch import ModelArch
from engine.scheduler.plan import StepPlan

GRAPH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
# The device's own pace rises and falls over minutes, in two waves that never meet twice alike.
_DRIFT_PERIODS_S = (410.0, 1730.0)
_PACE_LASTS_S = 1.0


@dataclass(frozen=True)
class Noise:
    """What makes two equal steps differ.

    Attributes:
        spread, memory: standard deviation of the logarithm of a step's duration, and its correlation with the next one.
        hiccup_share: of the steps; `hiccup_s` is how long one lasts in the mean, on top.
        drift: largest relative change of pace of each wave.
    """

    spread: float = 0.05
    memory: float = 0.7
    hiccup_share: float = 0.002
    hiccup_s: float = 0.15
    drift: float = 0.006


@dataclass(frozen=True)
class Device:
    """A made-up device with a model on it. Times are in seconds.

    Attributes:
        weights_s: to read the weights, once per step.
        context_s: to read the keys and values of a token of context.
        token_s: arithmetic of a token, of those added by padding too.
        square_s: arithmetic of attention, per square of a chunk's tokens.
        host_s, host_request_s, host_power: of every step, and of its running requests to that power.
        disturbance: share of the smaller of the two works that is lost when prompts and decodes share a step.
        tile: prompt tokens are padded to a multiple of it.
        eager_s: more, for a step of decodes that is larger than every captured graph.
        memory_bytes: in all.
        step_bytes_per_token, seat_bytes: that a step takes for itself, per token and per seat that it may have.
    """

    name: str
    weights_s: float
    context_s: float
    token_s: float
    square_s: float
    host_s: float
    host_request_s: float
    host_power: float
    disturbance: float
    tile: int
    eager_s: float
    memory_bytes: int
    step_bytes_per_token: int
    seat_bytes: int
    noise: Noise = Noise()

    def step_s(self, plan: StepPlan) -> float:
        """Duration of a step without noise."""
        prefill = squares = context = decodes = 0
        for _, computed, tokens, _, is_decode in plan.scheduled:
            context += computed
            if is_decode:
                decodes += 1
            else:
                prefill += tokens
                squares += tokens * (tokens + computed)
        host = self.host_s + self.host_request_s * plan.num_running**self.host_power
        prompts = -(-prefill // self.tile) * self.tile * self.token_s + squares * self.square_s
        if not prefill:
            place = bisect_left(GRAPH_SIZES, decodes)
            if place == len(GRAPH_SIZES):
                host += self.eager_s
            else:
                decodes = GRAPH_SIZES[place]
        arithmetic = prompts + decodes * self.token_s
        traffic = self.weights_s + context * self.context_s
        disturbed = self.disturbance * min(prompts, traffic) if prefill and decodes else 0.0
        return max(arithmetic, traffic) + disturbed + host


class TruthTimes:
    """A `StepTimeModel`: the device's law with its noise, which is new in every run.

    Args:
        seed: of all noise.
        now_s: the time at which a run begins, for the drift.
    """

    def __init__(self, device: Device, seed: int, now_s: Callable[[], float]) -> None:
        self._device = device
        self._seed = seed
        self._now_s = now_s
        self._runs = 0
        rng = random.Random(f"phases of {seed}")
        self._phases = [rng.uniform(0.0, 2.0 * math.pi) for _ in _DRIFT_PERIODS_S]
        self.restart(0)

    def restart(self, seed: int) -> None:
        """Begin a run. The seed of its traffic does not matter: a device is not the same twice."""
        self._runs += 1
        self._random = random.Random(f"{self._seed} {self._runs}")
        self._score = self._random.gauss(0.0, 1.0)
        self._at_s = self._pace_until_s = self._now_s()

    def seconds(self, plan: StepPlan) -> float:
        """Duration of a step with tokens, > 0."""
        noise, rng = self._device.noise, self._random
        self._score = noise.memory * self._score + math.sqrt(1.0 - noise.memory**2) * rng.gauss(0.0, 1.0)
        seconds = self._device.step_s(plan) * math.exp(noise.spread * self._score)
        if self._at_s >= self._pace_until_s:
            self._pace, self._pace_until_s = self._pace_at(self._at_s), self._at_s + _PACE_LASTS_S
        seconds *= self._pace
        if rng.random() < noise.hiccup_share:
            seconds += rng.expovariate(1.0 / noise.hiccup_s)
        self._at_s += seconds
        return seconds

    def swap_seconds(self, num_blocks: int, bytes_per_block: int) -> float:
        """Nothing is swapped in the proof."""
        raise NotImplementedError("the made-up devices have no swap space")

    def _pace_at(self, at_s: float) -> float:
        waves = zip(_DRIFT_PERIODS_S, self._phases, strict=True)
        return 1.0 + self._device.noise.drift * sum(math.sin(2.0 * math.pi * at_s / p + phase) for p, phase in waves)


class TruthExecutor(SimulatedExecutor):
    """A simulated executor with a made-up device's memory and step times."""

    def __init__(self, device: Device, arch: ModelArch, times: TruthTimes, max_model_len: int) -> None:
        super().__init__(
            arch,
            times,
            device_name=f"made-up {device.name}",
            device_memory_bytes=device.memory_bytes,
            max_model_len=max_model_len,
        )
        self._device = device

    def profile_memory(self, max_num_batched_tokens: int, max_num_seqs: int) -> MemoryProfile:
        """See `Executor.profile_memory`."""
        device = self._device
        peak = device.step_bytes_per_token * max_num_batched_tokens + device.seat_bytes * max_num_seqs
        weights = self.arch.weight_bytes(self._bytes_per_element)
        return MemoryProfile(device.memory_bytes, weights, device.memory_bytes // 40, peak)
