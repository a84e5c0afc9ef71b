"""The strategies by the names that `--strategy` takes."""

import difflib
from collections.abc import Mapping, Sequence

from engine.errors import UserError
from tuner.objectives import DEFAULT_OBJECTIVES, Objective
from tuner.strategies.base import Strategy
from tuner.strategies.cmaes import CmaEs
from tuner.strategies.grid import Grid
from tuner.strategies.samplers import Gp, Nsga2, Qmc, Random, Tpe
from tuner.strategies.staged import Staged
from tuner.strategies.twin_search import TwinSearch

STRATEGIES: Mapping[str, type[Strategy]] = {
    "tpe": Tpe,
    "twin": TwinSearch,
    "gp": Gp,
    "cmaes": CmaEs,
    "nsga2": Nsga2,
    "qmc": Qmc,
    "random": Random,
    "grid": Grid,
    "staged": Staged,
}
AUTO = "auto"
# The others go by the goodput alone.
WITH_ANY_OBJECTIVES = ("twin", "tpe", "gp", "nsga2", "qmc", "random", "grid")


def chosen(name: str, begun: str | None = None) -> str:
    """The strategy that a name stands for: `auto` is the one with which a study has begun, else the twin."""
    return (begun or "twin") if name == AUTO else name


def strategy_named(name: str) -> type[Strategy]:
    """The strategy of a name.

    Raises:
        UserError: there is none of that name.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    near = difflib.get_close_matches(name, STRATEGIES, n=1)
    right = f"did you mean {near[0]}?" if near else f"choose {AUTO} or one of {', '.join(STRATEGIES)}"
    raise UserError(f"--strategy {name!r} is unknown: {right}")


def require_objectives(name: str, objectives: Sequence[Objective]) -> None:
    """Refuse objectives that a strategy cannot search by, before anything is measured.

    Raises:
        UserError: with the strategies that can.
    """
    if tuple(objectives) == DEFAULT_OBJECTIVES or name in WITH_ANY_OBJECTIVES:
        return
    raise UserError(
        f"--strategy {name} searches for goodput alone, and --objective asks for "
        f"{', '.join(objective.name for objective in objectives)}: choose one of {', '.join(WITH_ANY_OBJECTIVES)}"
    )
