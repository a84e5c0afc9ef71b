"""The strategies by the names that `--strategy` takes."""

import difflib
from collections.abc import Mapping

from engine.errors import UserError
from tuner.strategies.base import Strategy
from tuner.strategies.cmaes import CmaEs
from tuner.strategies.grid import Grid
from tuner.strategies.samplers import Gp, Qmc, Random, Tpe
from tuner.strategies.staged import Staged
from tuner.strategies.twin_search import TwinSearch

STRATEGIES: Mapping[str, type[Strategy]] = {
    "tpe": Tpe,
    "twin": TwinSearch,
    "gp": Gp,
    "cmaes": CmaEs,
    "qmc": Qmc,
    "random": Random,
    "grid": Grid,
    "staged": Staged,
}


def strategy_named(name: str) -> type[Strategy]:
    """The strategy of a name.

    Raises:
        UserError: there is none of that name.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    near = difflib.get_close_matches(name, STRATEGIES, n=1)
    right = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(STRATEGIES)}"
    raise UserError(f"--strategy {name!r} is unknown: {right}")
