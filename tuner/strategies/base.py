"""The contract between a study and whatever chooses the settings that it measures."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from tuner.objectives import DEFAULT_OBJECTIVES, Objective
from tuner.prior import NO_PRIOR, Prior
from tuner.settings import Settings
from tuner.space import SearchSpace
from tuner.trial import Trial

if TYPE_CHECKING:
    import optuna

    from tuner.twin.twin import Twin


@dataclass(frozen=True, slots=True)
class Search:
    """What a strategy works with.

    Attributes:
        study: Optuna's record of the study, which outlives the process.
        space: what is searched.
        seed: the same seed and the same results lead to the same proposals.
        trials: the baseline, then every setting that was tried; the study adds to it as it goes on.
        used_share: how much of the trials or the time for the search is gone, from 0 to 1.
        say: tells the user a line.
        thinking: shows the user that a proposal takes a while: what is done, and how much of it is.
        make_twin: learns the twin anew from all runs so far; None while they teach too little.
        searches_rate: each setting is measured at the highest rate that it holds, not at one that was given.
        objectives: what settings are compared by, the main one first.
        predicted: by settings that were proposed, the rate and the goodput that a strategy expected of them.
        predicted_values: likewise, the values of the objectives, where goodput is not the only one.
        luck: by settings, see `Trial.luck`.
        prior: what earlier studies say.
    """

    study: "optuna.Study"
    space: SearchSpace
    seed: int
    trials: Sequence[Trial]
    used_share: Callable[[], float]
    say: Callable[[str], None]
    thinking: Callable[[str, float], None] = lambda what, share: None
    make_twin: Callable[[], "Twin | None"] = lambda: None
    searches_rate: bool = True
    objectives: Sequence[Objective] = DEFAULT_OBJECTIVES
    predicted: dict[Settings, tuple[float | None, float]] = field(default_factory=dict)
    predicted_values: dict[Settings, Mapping[str, float]] = field(default_factory=dict)
    luck: dict[Settings, float] = field(default_factory=dict)
    prior: Prior = NO_PRIOR

    def foretold(self, settings: Settings) -> dict[str, Any]:
        """What is said of settings before they are measured, as the fields of their `Trial`."""
        return {
            "predicted": self.predicted.get(settings),
            "predicted_values": self.predicted_values.get(settings),
            "luck": self.luck.get(settings, 0.0),
        }

    def known(self, settings: Settings) -> Trial | None:
        """The finished trial of these settings; None where they were not measured."""
        return next((t for t in self.trials if t.settings == settings and t.state != "running"), None)


class Strategy(ABC):
    """Proposes settings one at a time and learns from each before the next.

    What it needs in order to go on lies in the Optuna study: one that is made for a study with a past goes on from
    there, and proposes a setting first whose trial did not end.

    Args:
        search: what it works with; `search.trials` holds the baseline and what was finished before.

    Attributes:
        warm_starts: it can use what earlier studies say.
    """

    warm_starts: ClassVar[bool] = True

    def __init__(self, search: Search) -> None:
        self._search = search

    @classmethod  # noqa: B027  (most can search any space)
    def require_able(cls, space: SearchSpace) -> None:
        """Refuse a space that this strategy cannot search, before anything is measured.

        Raises:
            UserError: with what would have to be different.
        """

    @abstractmethod
    def propose(self) -> Settings | None:
        """Settings in canonical form that no trial has; None when no further ones are worth a run."""

    @abstractmethod
    def learn(self, trial: Trial) -> None:
        """Take in what became of the settings that were proposed last."""
