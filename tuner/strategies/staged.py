"""The order in which practitioners tune: memory first, then seats and token budget, then chunking, then the rest."""

from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from tuner.objectives import DEFAULT_OBJECTIVES, rank
from tuner.settings import Settings
from tuner.space import SearchSpace
from tuner.strategies.base import Search
from tuner.strategies.samplers import Tpe
from tuner.trial import Trial, outcome

_ORDER = {
    "memory": ("gpu_memory_utilization",),
    "seats and token budget": ("max_num_seqs", "max_num_batched_tokens"),
    "chunking": ("chunk_size",),
}
_REST = "the rest"
_STAGE = "stage"


class Stage(NamedTuple):
    """Settings that are searched together.

    Attributes:
        ends_at: share of the search after which the next stage begins.
    """

    title: str
    names: tuple[str, ...]
    ends_at: float


class Staged(Tpe):
    """Searches a few settings at a time by TPE; what an earlier stage found best stays.

    A stage has a share of the search by its number of settings, and ends before that when it is used up. Which one is
    under way, and what it keeps, is stored with the Optuna study.
    """

    def __init__(self, search: Search) -> None:
        self._stages = stages_of(search.space)
        stored = search.study.user_attrs.get(_STAGE)
        self._index = stored["index"] if stored else 0
        self._kept = Settings.from_dict(stored["kept"]) if stored else search.space.fixed
        super().__init__(search)

    def propose(self) -> Settings | None:
        if not self._is_last and self._search.used_share() >= self._stages[self._index].ends_at:
            self._begin_next()
        settings = self._draw_new()
        while settings is None and not self._is_last:
            self._begin_next()
            settings = self._draw_new()
        if settings is None:
            self._search.say("the last stage is used up")
        return settings

    @property
    def _is_last(self) -> bool:
        return self._index + 1 >= len(self._stages)

    def _space_for(self, space: SearchSpace) -> SearchSpace:
        names = self._stages[self._index].names if self._stages else ()
        return SearchSpace({name: space.dimensions[name] for name in names}, self._kept)

    def _begin_next(self) -> None:
        search = self._search
        best = max(search.trials, key=_merit)
        found = [name for stage in self._stages[: self._index + 1] for name in stage.names]
        self._kept = replace(search.space.fixed, **{name: getattr(best.settings, name) for name in found})
        self._index += 1
        self._study.set_user_attr(_STAGE, {"index": self._index, "kept": self._kept.to_dict()})
        kept = ", ".join(f"{name}={getattr(self._kept, name)}" for name in found)
        search.say(f"stage {self._index + 1} of {len(self._stages)}, {self._stages[self._index].title}; kept: {kept}")
        self.space = self._space_for(search.space)
        self._tell_known(best)


def stages_of(space: SearchSpace) -> list[Stage]:
    """The stages that have anything to search, in order."""
    placed = {name for names in _ORDER.values() for name in names}
    order = _ORDER | {_REST: tuple(name for name in space.dimensions if name not in placed)}
    searched = {title: tuple(n for n in names if n in space.dimensions) for title, names in order.items()}
    some = {title: names for title, names in searched.items() if names}
    ends = accumulate(len(names) / len(space.dimensions) for names in some.values())
    return [Stage(title, names, end) for (title, names), end in zip(some.items(), ends, strict=True)]


def _merit(trial: Trial) -> tuple[bool, tuple[float, ...]]:
    """Order among all trials: by rank those that meet the SLO, before them those that miss it, by how far."""
    if trial.held:
        return True, rank(trial, DEFAULT_OBJECTIVES)
    goodput, constraint = outcome(trial)
    return False, (-constraint, goodput)
