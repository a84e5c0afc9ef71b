"""What is searched: ranges that fit the model and the device, sampled through Optuna."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.errors import UserError
from tuner.settings import NAMES, Settings, parse_value

if TYPE_CHECKING:
    import optuna

TUNED = ("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "chunk_size")
_CHUNKED = "chunked"


@dataclass(frozen=True, slots=True)
class Range:
    """An interval of numbers, both ends included. Whole numbers are drawn on a logarithmic scale."""

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

    `chunk_size` as a range is searched together with the choice of no limit at all.
    """

    dimensions: Mapping[str, Dimension]
    fixed: Settings

    def suggest(self, trial: "optuna.Trial") -> Settings:
        """Draw settings for a trial, in canonical form: never more seats or a larger chunk than tokens."""
        values: dict[str, Any] = {}
        for name, dimension in self.dimensions.items():
            if isinstance(dimension, Choices):
                values[name] = trial.suggest_categorical(name, dimension.values)
            elif isinstance(getattr(self.fixed, name), float):
                values[name] = round(trial.suggest_float(name, dimension.low, dimension.high, step=0.01), 2)
            elif name != "chunk_size" or trial.suggest_categorical(_CHUNKED, (False, True)):
                rounded = round_setting(self._suggest_int(trial, name, dimension))
                # The nearest round number may lie just outside of the range.
                values[name] = int(min(max(rounded, dimension.low), dimension.high))
            else:
                values[name] = 0
        return Settings.from_dict(self.fixed.to_dict() | values).canonical()

    @staticmethod
    def _suggest_int(trial: "optuna.Trial", name: str, dimension: Range) -> int:
        return trial.suggest_int(name, int(dimension.low), int(dimension.high), log=True)

    def params_of(self, settings: Settings) -> dict[str, Any] | None:
        """The Optuna parameters that give these settings; None when they lie outside the space."""
        params: dict[str, Any] = {}
        for name, dimension in self.dimensions.items():
            value = getattr(settings, name)
            if isinstance(dimension, Choices):
                if value not in dimension.values:
                    return None
            elif name == "chunk_size":
                params[_CHUNKED] = value > 0
                if value == 0:
                    continue
            if isinstance(dimension, Range) and not dimension.low <= value <= dimension.high:
                return None
            params[name] = value
        return params

    def to_dict(self) -> dict[str, list[Any]]:
        """As stored in `study.json`: `[low, high]`, or the list of choices."""
        return {
            name: [d.low, d.high] if isinstance(d, Range) else list(d.values) for name, d in self.dimensions.items()
        }


def round_setting(value: int) -> int:
    """The nearest number of the form 4..8 times a power of two, so that settings are ones that people would type.

    Neighbours differ by an eighth to a fifth, less than what a measurement can tell apart.
    """
    if value < 8:
        return value
    unit = 1 << (value.bit_length() - 3)
    return round(value / unit) * unit


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
    seats_high = max(16, min(1024 if on_gpu else 256, round_setting(max(1, max_resident_requests))))
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
        UserError: another form, an unknown name, or an empty range.
    """
    dimensions = dict(space.dimensions)
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if name not in NAMES:
            raise UserError(f"--search {text!r}: unknown setting {name!r}: known are {', '.join(NAMES)}")
        if not equals or not values:
            raise UserError(f"--search {text!r} is not understood: write {name}=low..high or {name}=a,b,c")
        dimensions[name] = _parse_dimension(space.fixed, name, values)
    return SearchSpace(dimensions, space.fixed)


def _parse_dimension(fixed: Settings, name: str, values: str) -> Dimension:
    low, dots, high = values.partition("..")
    if not dots:
        choices = tuple(parse_value(name, v.strip()) for v in values.split(","))
        for value in choices:
            Settings.from_dict(fixed.to_dict() | {name: value})
        return Choices(choices)
    if isinstance(getattr(fixed, name), str | bool):
        raise UserError(f"--search {name}={values!r}: {name} has no range; write {name}=a,b")
    ends = Range(parse_value(name, low), parse_value(name, high))
    if not ends.low < ends.high:
        raise UserError(f"--search {name}={values!r}: the range is empty; write low..high with low < high")
    for value in (ends.low, ends.high):
        Settings.from_dict(fixed.to_dict() | {name: value})
    if name == "chunk_size" and ends.low < 1:
        raise UserError(f"--search {name}={values!r}: a range of chunks starts at 1; no chunking is tried beside it")
    return ends
