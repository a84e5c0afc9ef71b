"""What is searched: ranges that fit the model and the device, sampled through Optuna."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import TYPE_CHECKING, Any

from engine.errors import UserError
from tuner.catalogue import CATALOGUE
from tuner.kinds import NumberKind
from tuner.settings import DRAW_ORDER, Settings, parse_value, require_known

if TYPE_CHECKING:
    import optuna

TUNED = ("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "chunk_size")
_CHUNKED = "chunked"
_DECIDERS = ("policy", "short_first_tokens", "retried_first", "preemption_victim", "batching", "preemption_mode")
_MOST_ANSWERS = 4096


@dataclass(frozen=True, slots=True)
class Range:
    """An interval of numbers, both ends included. The setting's kind knows the scale on which it is drawn."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Choices:
    """A few values."""

    values: tuple[Any, ...]


Dimension = Range | Choices


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The searched settings and their ranges; all others stay as in `fixed`.

    `chunk_size` as a range is searched together with the choice of no limit at all. An option that cannot act beside
    the values drawn before it is not drawn.
    """

    dimensions: Mapping[str, Dimension]
    fixed: Settings

    def suggest(self, trial: "optuna.trial.BaseTrial") -> Settings:
        """Draw settings for a trial, in canonical form."""
        settings = self.fixed
        for name in DRAW_ORDER:
            if name in self.dimensions and not settings.inert_beside(name):
                settings = replace(settings, **{name: self._draw(trial, name)})
        return settings.canonical()

    def _draw(self, trial: "optuna.trial.BaseTrial", name: str) -> Any:
        dimension = self.dimensions[name]
        if isinstance(dimension, Choices):
            return trial.suggest_categorical(name, dimension.values)
        if name == "chunk_size" and not trial.suggest_categorical(_CHUNKED, (False, True)):
            return 0
        kind = CATALOGUE[name].kind
        assert isinstance(kind, NumberKind)
        value: float
        if kind.whole:
            value = trial.suggest_int(name, int(dimension.low), int(dimension.high), log=kind.logarithmic)
        else:
            value = trial.suggest_float(name, dimension.low, dimension.high, log=kind.logarithmic)
        return self._readable(name, value)

    def _readable(self, name: str, value: Any) -> Any:
        """The value of a range that stands for one that was drawn: a round one, or the user's own."""
        kind, dimension = CATALOGUE[name].kind, self.dimensions[name]
        assert isinstance(kind, NumberKind)
        assert isinstance(dimension, Range)
        if value == getattr(self.fixed, name):
            return value
        # The nearest round number may lie just outside of the range.
        return type(value)(min(max(kind.rounded(value), dimension.low), dimension.high))

    def params_of(self, settings: Settings) -> dict[str, Any] | None:
        """Optuna parameters that give these settings; None when they lie outside the space.

        Canonical settings do not show every value that was drawn: more seats than tokens, for one. The answers that
        can have led to them are tried until one does.
        """
        from optuna.trial import FixedTrial

        names = [name for name in DRAW_ORDER if name in self.dimensions]
        answers = product(*(self._possible(name, getattr(settings, name)) for name in names))
        for values in islice(answers, _MOST_ANSWERS):
            params = dict(zip(names, values, strict=True))
            if isinstance(self.dimensions.get("chunk_size"), Range):
                params[_CHUNKED] = params["chunk_size"] > 0
            trial = FixedTrial(params)
            if self.suggest(trial) == settings:
                return trial.params
        return None

    def _possible(self, name: str, value: Any) -> Sequence[Any]:
        """What may have been drawn where canonical settings have this value, the likeliest first."""
        dimension = self.dimensions[name]
        if isinstance(dimension, Choices):
            return sorted(dimension.values, key=lambda v: v != value)
        if name == "chunk_size" and value == 0:
            return (0,)
        if dimension.low <= value <= dimension.high and self._readable(name, value) == value:
            return (value,)
        # A value that limits nothing is made plainer, and that is the case for the highest before any other.
        return (dimension.high,)

    def corners(self) -> list[Settings]:
        """Settings with every combination of the searched values that decide whether other options act."""
        names = [name for name in _DECIDERS if name in self.dimensions]
        ends: list[tuple[Any, ...]] = [
            d.values if isinstance(d := self.dimensions[name], Choices) else (d.low, d.high) for name in names
        ]
        return [replace(self.fixed, **dict(zip(names, values, strict=True))) for values in product(*ends)]

    def to_dict(self) -> dict[str, list[Any]]:
        """As stored in `study.json`: `[low, high]`, or the list of choices."""
        return {
            name: [d.low, d.high] if isinstance(d, Range) else list(d.values) for name, d in self.dimensions.items()
        }


def default_space(
    fixed: Settings, held: Iterable[str], *, on_gpu: bool, smallest_utilization: float, max_resident_requests: int
) -> SearchSpace:
    """Ranges for the four settings that the tuner searches unless told otherwise.

    Args:
        fixed: values of everything that is not searched.
        held: names that the user has set; they are not searched.
        on_gpu: a GPU pays for larger steps than a CPU.
        smallest_utilization: least memory share with which one longest request fits beside the largest step.
        max_resident_requests: mean requests that the largest KV cache holds; seats beyond it never fill.
    """
    seats = CATALOGUE["max_num_seqs"].kind
    assert isinstance(seats, NumberKind)
    seats_high = max(16, min(1024 if on_gpu else 256, seats.rounded(max(1, max_resident_requests))))
    lowest_share = min(0.95, max(0.5, round(smallest_utilization + 0.005, 2)))
    ranges = {
        "gpu_memory_utilization": Range(lowest_share, 0.95),
        "max_num_seqs": Range(8 if on_gpu else 4, seats_high),
        "max_num_batched_tokens": Range(512, 16384) if on_gpu else Range(64, 4096),
        "chunk_size": Range(128, 4096) if on_gpu else Range(32, 1024),
    }
    held = set(held)
    return SearchSpace({name: r for name, r in ranges.items() if name not in held}, fixed)


def with_search(space: SearchSpace, texts: Iterable[str]) -> SearchSpace:
    """The space with `name=low..high` or `name=a,b,c` applied.

    Raises:
        UserError: another form, an unknown name, an empty range, or a setting that could never act.
    """
    dimensions = dict(space.dimensions)
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        try:
            require_known(name)
        except UserError as error:
            raise UserError(f"--search {text!r}: {error}") from None
        if not equals or not values:
            raise UserError(f"--search {text!r} is not understood: write {name}=low..high or {name}=a,b,c")
        dimensions[name] = _parse_dimension(space.fixed, name, values)
    searched = SearchSpace(dimensions, space.fixed)
    corners = searched.corners()
    for name in dimensions:
        inert = [settings.inert_beside(name) for settings in corners]
        if all(inert):
            raise UserError(f"--search {name}: it does nothing beside {inert[0]}; set or search that too")
    return searched


def _parse_dimension(fixed: Settings, name: str, values: str) -> Dimension:
    low, dots, high = values.partition("..")
    if not dots:
        choices = tuple(dict.fromkeys(parse_value(name, v) for v in values.split(",")))
        for value in choices:
            replace(fixed, **{name: value})
        return Choices(choices)
    kind = CATALOGUE[name].kind
    if not isinstance(kind, NumberKind):
        raise UserError(f"--search {name}={values!r}: {name} has no range; write {name}=a,b")
    ends = (parse_value(name, low), parse_value(name, high))
    if not ends[0] < ends[1]:
        raise UserError(f"--search {name}={values!r}: the range is empty; write low..high with low < high")
    for end in ends:
        replace(fixed, **{name: end})
    if ends[0] <= 0:
        beside = "no chunking is tried beside it" if name == "chunk_size" else f"to try off too, write {name}=off,a,b"
        raise UserError(f"--search {name}={values!r}: a range starts above 0; {beside}")
    return Range(*ends)
