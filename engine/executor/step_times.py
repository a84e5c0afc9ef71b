"""How long a step takes on a device whose steps were measured: a sum of terms, times a jitter like the device's own.

The weights come from a fit (`tuner.twin`); here they are only used, by the simulated executor.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from engine.errors import UserError
from engine.scheduler.plan import StepPlan

# Where the cost of a token may change: below, a step is bound by reading weights, above by arithmetic.
KNOTS = (8, 32, 128, 512, 2048)
# Beyond this much more than anything seen, a prediction is an extrapolation.
_REACH = 1.25


class StepShape(NamedTuple):
    """What a step's duration depends on; numbers of one step, or arrays `[steps]` of many.

    Attributes:
        requests: in the step.
        prefill_tokens, decode_tokens: computed.
        attended_tokens: sum over the computed tokens of the tokens each attends to: the arithmetic of attention.
        context_tokens: sum over the requests of the tokens in their cache at the end: what attention reads.
    """

    requests: Any
    prefill_tokens: Any
    decode_tokens: Any
    attended_tokens: Any
    context_tokens: Any

    def terms(self) -> list[Any]:
        """The terms whose weighted sum is the duration.

        Each grows with the step, so that with weights of 0 or more the duration does too. Beside the plain sizes there
        are the tokens up to each knot and those beyond it: their cost per token may fall or rise there.
        """
        tokens = self.prefill_tokens + self.decode_tokens
        terms = [1.0 + 0.0 * tokens, *self]
        for knot in KNOTS:
            beyond = (tokens - knot) * (tokens > knot)
            terms += [tokens - beyond, beyond]
        return terms


TERMS = (
    "fixed",
    *StepShape._fields,
    *(name for knot in KNOTS for name in (f"tokens up to {knot}", f"tokens beyond {knot}")),
)
"""Names of the terms, in order."""


def shape_of(plan: StepPlan) -> StepShape:
    """The shape of a planned step."""
    return StepShape(*plan.work())


@dataclass(frozen=True)
class StepTimes:
    """Durations of a device's steps.

    Attributes:
        weights: seconds per unit of each of `TERMS`, 0 or more.
        jitter: quantiles, evenly spaced, of the logarithm of measured over predicted.
        memory: correlation of one step's jitter with the next one's, as normal scores, in [0, 1).
        largest: the largest of each part of `StepShape` that was seen.
        steps: how many steps it was learnt from.
    """

    weights: tuple[float, ...]
    jitter: tuple[float, ...]
    memory: float
    largest: StepShape
    steps: int

    def seconds(self, shape: StepShape) -> Any:
        """The expected duration, without jitter; an array `[steps]` for a shape of arrays."""
        return sum(weight * term for weight, term in zip(self.weights, shape.terms(), strict=True) if weight)

    def extrapolates(self, shape: StepShape) -> bool:
        """Whether a step lies well outside of what was seen."""
        return any(part > _REACH * seen for part, seen in zip(shape, self.largest, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """As stored in JSON."""
        return {
            "weights": {name: weight for name, weight in zip(TERMS, self.weights, strict=True) if weight},
            "jitter": list(self.jitter),
            "memory": self.memory,
            "largest": self.largest._asdict(),
            "steps": self.steps,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "StepTimes":
        """As read from JSON.

        Raises:
            UserError: not what `to_dict` writes.
        """
        try:
            weights = {str(name): float(weight) for name, weight in values["weights"].items()}
            times = cls(
                tuple(weights.pop(name, 0.0) for name in TERMS),
                tuple(float(value) for value in values["jitter"]),
                float(values["memory"]),
                StepShape(**values["largest"]),
                int(values["steps"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"the step times are damaged ({error!r}): fit them again") from None
        sound = 0 <= times.memory < 1 and len(times.jitter) > 1 and min(times.weights) >= 0 and any(times.weights)
        if weights or not sound:
            raise UserError(f"the step times are not what this version writes ({sorted(weights)}): fit them again")
        return times


class JitteredStepTimes:
    """A step-time model for the simulated executor: `StepTimes` with its jitter drawn from a seed.

    The jitter is a Gaussian process of order 1 whose values are mapped to the measured quantiles, so that a slow spell
    of the device lasts as long as it did there.

    Args:
        link_bytes_per_s: speed of the host's link, for swapped blocks.
    """

    def __init__(self, times: StepTimes, link_bytes_per_s: float) -> None:
        self.num_steps = self.num_extrapolated = 0
        self._times = times
        self._link_bytes_per_s = link_bytes_per_s
        self._fresh = math.sqrt(1.0 - times.memory**2)
        self.restart(0)

    @property
    def extrapolated(self) -> float:
        """Share of the steps since the start that lie well outside of what was learnt from."""
        return self.num_extrapolated / self.num_steps if self.num_steps else 0.0

    def restart(self, seed: int) -> None:
        """Draw from this seed on, and count from 0."""
        self.num_steps = self.num_extrapolated = 0
        self._random = random.Random(seed)
        self._score = self._random.gauss(0.0, 1.0)

    def seconds(self, plan: StepPlan) -> float:
        """Duration of a step with tokens, > 0."""
        shape = shape_of(plan)
        self.num_steps += 1
        self.num_extrapolated += self._times.extrapolates(shape)
        return max(1e-9, float(self._times.seconds(shape)) * math.exp(self._draw()))

    def swap_seconds(self, num_blocks: int, bytes_per_block: int) -> float:
        """Time that so many blocks take to host memory, or back."""
        return num_blocks * bytes_per_block / self._link_bytes_per_s

    def _draw(self) -> float:
        quantiles = self._times.jitter
        self._score = self._times.memory * self._score + self._fresh * self._random.gauss(0.0, 1.0)
        place = 0.5 * (1.0 + math.erf(self._score / math.sqrt(2.0))) * (len(quantiles) - 1)
        below = min(int(place), len(quantiles) - 2)
        return quantiles[below] + (place - below) * (quantiles[below + 1] - quantiles[below])
