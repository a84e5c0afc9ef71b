"""All combinations of a few levels of every setting."""

import math
import random
import warnings
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from engine.errors import UserError
from tuner.catalogue import CATALOGUE
from tuner.flat_space import FlatSpace, off_value
from tuner.kinds import NumberKind
from tuner.settings import Settings
from tuner.space import Choices, Range, SearchSpace
from tuner.strategies.base import Search
from tuner.strategies.sampled import MAX_DUPLICATES, SampledStrategy

if TYPE_CHECKING:
    import optuna

LEVELS = 5
# Months of measuring; the points are listed before the first is measured.
MOST_COMBINATIONS = 20_000


class Grid(SampledStrategy):
    """Visits every point once, in an order drawn by the seed: a grid that is left early was a fair sample of it.

    Optuna's own grid sampler ends a study from inside, which only its `optimize` loop allows; here each point is drawn
    by a sampler that is fixed to it.
    """

    needs_every_parameter = True
    warm_starts = False

    def __init__(self, search: Search) -> None:
        super().__init__(search)
        self._points = points_of(search.space, search.seed)
        search.say(f"the grid has {len(self._points)} points, {len(self._open_points())} of them to be measured")

    @classmethod
    def require_able(cls, space: SearchSpace) -> None:
        combinations = math.prod(len(values) for values in levels_of(space).values())
        if combinations > MOST_COMBINATIONS:
            raise UserError(
                f"--strategy grid has {combinations} combinations to go through, and {MOST_COMBINATIONS} are the most: "
                "search fewer settings (--set fixes one), or name fewer values with --search NAME=a,b"
            )

    def propose(self) -> Settings | None:
        import optuna

        # A trial that another process left open comes before the point that was aimed at.
        for _ in range(MAX_DUPLICATES):
            still_open = self._open_points()
            if not still_open:
                break
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                fixed = optuna.samplers.PartialFixedSampler(dict(self._points[still_open[0]]), self._sampler)
            self._study.sampler = fixed
            settings = self._ask()
            if settings is not None:
                return settings
        self._search.say(f"all {len(self._points)} points of the grid are measured")
        return None

    def _make_sampler(self, seed: int) -> "optuna.samplers.BaseSampler":
        import optuna

        return optuna.samplers.RandomSampler(seed=seed)

    def _open_points(self) -> list[Settings]:
        known = {trial.settings for trial in self._search.trials if trial.state != "running"}
        return [settings for settings in self._points if settings not in known]


def levels_of(space: SearchSpace) -> dict[str, Sequence[Any]]:
    """The values of every searched setting: its choices, or steps of equal ratio (of equal size for a share)."""
    return {name: _levels(name, dimension) for name, dimension in space.dimensions.items()}


def points_of(space: SearchSpace, seed: int) -> dict[Settings, Mapping[str, Any]]:
    """The points of the grid in the order of the seed, each with the parameters that give it.

    Combinations with the same behaviour are one point.
    """
    from optuna.trial import FixedTrial

    levels = levels_of(space)
    flat = FlatSpace(space.dimensions, space.fixed)
    points: dict[Settings, Mapping[str, Any]] = {}
    for values in product(*levels.values()):
        params = dict(zip(levels, values, strict=True))
        points.setdefault(flat.suggest(FixedTrial(params)), params)
    order = list(points)
    random.Random(seed).shuffle(order)
    return {settings: points[settings] for settings in order}


def _levels(name: str, dimension: Choices | Range) -> Sequence[Any]:
    if isinstance(dimension, Choices):
        return dimension.values
    kind = CATALOGUE[name].kind
    assert isinstance(kind, NumberKind)
    low, high = dimension.low, dimension.high
    shares = [i / (LEVELS - 1) for i in range(1, LEVELS - 1)]
    between = [low * (high / low) ** s if kind.logarithmic else low + (high - low) * s for s in shares]
    levels = [low, *between, high]
    if kind.whole:
        levels = [round(level) for level in levels]
    if name == "chunk_size":
        levels.append(off_value(dimension))
    return list(dict.fromkeys(levels))
