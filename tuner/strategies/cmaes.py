"""CMA-ES: a normal distribution that moves and stretches towards the better half of each generation."""

import importlib.util
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.errors import UserError
from tuner.flat_space import FlatSpace
from tuner.space import Range, SearchSpace
from tuner.strategies.base import Search
from tuner.strategies.sampled import SampledStrategy
from tuner.trial import Trial, outcome

if TYPE_CHECKING:
    import optuna

_PACKAGE = "cmaes"
# Its covariance has nothing to learn in one dimension, and the package refuses it.
_FEWEST_NUMBERS = 2


class CmaEs(SampledStrategy):
    """Searches the numbers of a space; what has choices stays as in the baseline.

    The sampler knows no constraints. It goes by rank alone, so settings that miss the SLO are told as worse than all
    that meet it, and among them by how far they miss it (Deb, Comput. Methods Appl. Mech. Eng. 2000).
    """

    has_generations = True

    def __init__(self, search: Search) -> None:
        super().__init__(search)
        held = [name for name in search.space.dimensions if name not in self.space.dimensions]
        if held:
            kept = ", ".join(f"{name}={getattr(search.space.fixed, name)}" for name in held)
            search.say(f"cmaes searches ranges only; it keeps {kept}")

    @classmethod
    def require_able(cls, space: SearchSpace) -> None:
        if importlib.util.find_spec(_PACKAGE) is None:
            raise UserError(
                f"--strategy cmaes needs the Python package {_PACKAGE}, which is not installed: install it, or choose "
                "another strategy"
            )
        numbers = list(_numbers_of(space).dimensions)
        if len(numbers) < _FEWEST_NUMBERS:
            raise UserError(
                f"--strategy cmaes needs at least {_FEWEST_NUMBERS} ranges to search, and has "
                f"{', '.join(numbers) or 'none'}: add --search NAME=low..high, or choose another strategy"
            )

    def _space_for(self, space: SearchSpace) -> SearchSpace:
        return _numbers_of(space)

    def _make_sampler(self, seed: int) -> "optuna.samplers.BaseSampler":
        import optuna

        return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)

    def _tell_outcome(self, asked: "optuna.Trial", trial: Trial) -> None:
        goodput, constraint = outcome(trial)
        self._study.tell(asked, goodput if constraint <= 0 else -constraint)


def _numbers_of(space: SearchSpace) -> SearchSpace:
    """The ranges that can act beside the settings that stay fixed."""
    ranges = {name: d for name, d in space.dimensions.items() if isinstance(d, Range)}
    numbers = FlatSpace(ranges, space.fixed)
    corners = numbers.corners()
    able = {name: d for name, d in ranges.items() if not all(corner.inert_beside(name) for corner in corners)}
    return replace(numbers, dimensions=able)
