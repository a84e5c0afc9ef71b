"""A search space without conditions, for samplers that need every parameter in every trial."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tuner.settings import DRAW_ORDER, Settings
from tuner.space import Choices, Range, SearchSpace

if TYPE_CHECKING:
    import optuna

# No limit is a quarter of the (logarithmic) scale, however wide the range.
_OFF_SHARE = 0.25


class FlatSpace(SearchSpace):
    """Draws every setting, also one that cannot act beside the others; canonical form takes its value back.

    No limit on chunks is one more chunk size: whatever is drawn above the range, on a scale that is a third longer.
    """

    __slots__ = ()

    def suggest(self, trial: "optuna.trial.BaseTrial") -> Settings:
        drawn = {name: self._draw(trial, name) for name in DRAW_ORDER if name in self.dimensions}
        return replace(self.fixed, **drawn).canonical()

    def _draw(self, trial: "optuna.trial.BaseTrial", name: str) -> Any:
        dimension = self.dimensions[name]
        if name != "chunk_size" or isinstance(dimension, Choices):
            return super()._draw(trial, name)
        value = trial.suggest_int(name, int(dimension.low), off_value(dimension), log=True)
        return 0 if value > dimension.high else self._readable(name, value)

    def _possible(self, name: str, value: Any) -> Sequence[Any]:
        dimension = self.dimensions[name]
        if name == "chunk_size" and value == 0 and isinstance(dimension, Range):
            return (off_value(dimension),)
        return super()._possible(name, value)


def off_value(chunk_sizes: Range) -> int:
    """The end of the scale on which chunk sizes are drawn, which stands for no limit."""
    low, high = chunk_sizes.low, chunk_sizes.high
    return math.ceil(high * (high / low) ** (_OFF_SHARE / (1 - _OFF_SHARE))) + 1
