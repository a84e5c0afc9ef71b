"""Settings as points in the unit cube of a search space, so that their distance says how alike they are."""

import math
from typing import Any

from tuner.catalogue import CATALOGUE
from tuner.kinds import NumberKind
from tuner.settings import Settings
from tuner.space import Choices, Dimension, SearchSpace

# Switching an option off is a step of its own beside its numbers, a small one: the ends of its scale act much like it.
_OFF_STEP = 0.25
# Two choices without an order are as far apart as the two ends of a range.
_CHOICE_STEP = math.sqrt(0.5)
_OFF_LIFTS_A_LIMIT = frozenset(
    ("chunk_size", "preferred_batch_size", "max_queue_len", "max_queue_tokens", "queue_timeout", "max_predicted_wait")
)


def unit_point(space: SearchSpace, settings: Settings) -> tuple[float, ...]:
    """Coordinates of settings by what the space searches, each from 0 to 1, `[coordinates]`.

    A number has its place between the ends of its dimension, on the scale on which it is drawn; one that lies outside
    is put on the nearer end. An option that can be off has a second coordinate for that. Choices without an order have
    one coordinate each. The number of coordinates depends on the space alone.
    """
    return tuple(x for name, d in space.dimensions.items() for x in _coordinates(name, d, getattr(settings, name)))


def _coordinates(name: str, dimension: Dimension, value: Any) -> tuple[float, ...]:
    kind = CATALOGUE[name].kind
    if not isinstance(kind, NumberKind):
        assert isinstance(dimension, Choices)
        return tuple(_CHOICE_STEP * (value == choice) for choice in dimension.values)
    low, high = _ends(dimension)
    can_be_off = name == "chunk_size" or (isinstance(dimension, Choices) and 0 in dimension.values)
    if not value:
        place = 1.0 if name in _OFF_LIFTS_A_LIMIT else 0.0
    else:
        place = _place(min(max(value, low), high), low, high, logarithmic=kind.logarithmic)
    return (place, _OFF_STEP * (not value)) if can_be_off else (place,)


def _ends(dimension: Dimension) -> tuple[float, float]:
    if not isinstance(dimension, Choices):
        return dimension.low, dimension.high
    numbers = [value for value in dimension.values if value] or [1.0]
    return min(numbers), max(numbers)


def _place(value: float, low: float, high: float, *, logarithmic: bool) -> float:
    if low == high:
        return 0.0
    return math.log(value / low) / math.log(high / low) if logarithmic else (value - low) / (high - low)
