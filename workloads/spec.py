"""What a workload is: arrivals and lengths, from a preset, a YAML file, and overrides on top."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from engine.errors import UserError
from workloads.arrivals import ARRIVALS, Arrivals, OpenLoop, Poisson
from workloads.classes import ONLY_CLASS, RequestClass, read_classes
from workloads.kinds import parse_kind, readable
from workloads.lengths import LENGTHS, Lengths
from workloads.prefixes import SharedPrefix, read_shared_prefix


def _class(share: float, priority: int, prompt_tokens: str, output_tokens: str) -> dict[str, Any]:
    return {
        "share": share,
        "priority": priority,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
    }


_LENGTHS_OF_ALL = ("prompt_tokens", "output_tokens")

PRESETS: dict[str, dict[str, Any]] = {
    "chat": {"prompt_tokens": "uniform:500..2000", "output_tokens": "uniform:200..800"},
    "chat-small": {"prompt_tokens": "uniform:32..192", "output_tokens": "uniform:16..64"},
    "summarize": {"prompt_tokens": "uniform:3000..8000", "output_tokens": "uniform:64..256"},
    "mixed": {
        "classes": {
            "interactive": _class(0.9, 0, "uniform:100..500", "uniform:50..200"),
            "batch": _class(0.1, 1, "uniform:4000..8000", "uniform:100..400"),
        }
    },
    "mixed-small": {
        "classes": {
            "interactive": _class(0.9, 0, "uniform:16..64", "uniform:8..24"),
            "batch": _class(0.1, 1, "uniform:256..768", "uniform:32..96"),
        }
    },
}
"""Workloads by name: `summarize` reads much and writes little, `mixed` has long requests that can wait among short ones
that cannot; `-small` is for small models and CPUs."""


class WorkloadSpec(BaseModel):
    """What arrives, without rate, seed and duration.

    Attributes:
        name: for people.
        arrival: how requests arrive; Poisson unless told otherwise.
        prompt_tokens, output_tokens: distributions of lengths in tokens; None where classes have their own.
        classes: the parts of the traffic by name; None where all requests are alike.
        shared_prefix: prefixes that a part of the requests begin with; None where every prompt is fresh.
        retries: how often a request that was turned away is sent again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    arrival: Arrivals = Poisson()
    prompt_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    classes: dict[str, RequestClass] | None = None
    shared_prefix: SharedPrefix | None = None
    retries: int = Field(default=0, ge=0)

    @field_validator("arrival", mode="before")
    @classmethod
    def _read_arrival(cls, value: object) -> Arrivals:
        return parse_kind(value, ARRIVALS, "arrival")

    @field_validator("prompt_tokens", mode="before")
    @classmethod
    def _read_prompt_tokens(cls, value: object) -> Lengths:
        return parse_kind(value, LENGTHS, "prompt_tokens")

    @field_validator("output_tokens", mode="before")
    @classmethod
    def _read_output_tokens(cls, value: object) -> Lengths:
        return parse_kind(value, LENGTHS, "output_tokens")

    @field_validator("classes", mode="before")
    @classmethod
    def _read_classes(cls, value: object) -> dict[str, RequestClass]:
        return read_classes(value)

    @field_validator("shared_prefix", mode="before")
    @classmethod
    def _read_shared_prefix(cls, value: object) -> SharedPrefix | None:
        return read_shared_prefix(value)

    @model_validator(mode="after")
    def _lengths_once(self) -> Self:
        missing = [name for name in _LENGTHS_OF_ALL if getattr(self, name) is None]
        if self.classes and len(missing) < len(_LENGTHS_OF_ALL):
            raise ValueError(
                "classes have lengths of their own: give either classes or prompt_tokens and output_tokens"
            )
        if not self.classes and missing:
            faults = " and ".join(f"{name!r}" for name in missing)
            raise ValueError(f"{faults} {'is' if len(missing) == 1 else 'are'} missing, and there are no classes")
        return self

    @property
    def request_classes(self) -> dict[str, RequestClass]:
        """The classes by name, in alphabetical order; one named `all` where the workload has none."""
        if self.classes:
            return dict(sorted(self.classes.items()))
        assert self.prompt_tokens is not None
        assert self.output_tokens is not None
        return {ONLY_CLASS: RequestClass(share=1, prompt_tokens=self.prompt_tokens, output_tokens=self.output_tokens)}

    @property
    def is_open_loop(self) -> bool:
        """Arrivals have a schedule, and so a rate."""
        return isinstance(self.arrival, OpenLoop)

    @property
    def max_request_tokens(self) -> int:
        """Prompt and output of the longest request there can be."""
        return max(c.max_request_tokens for c in self.request_classes.values())

    @property
    def mean_prompt_tokens(self) -> float:
        """Expected prompt length in tokens."""
        return self._mean_of_classes(lambda c: c.prompt_tokens.mean_tokens)

    @property
    def mean_output_tokens(self) -> float:
        """Expected output length in tokens."""
        return self._mean_of_classes(lambda c: c.output_tokens.mean_tokens)

    def _mean_of_classes(self, value: Callable[[RequestClass], float]) -> float:
        classes = self.request_classes.values()
        return sum(c.share * value(c) for c in classes) / sum(c.share for c in classes)

    def to_dict(self) -> dict[str, Any]:
        """The spec as `spec_from_dict` and a YAML file take it; what is at its default is left out."""
        values: dict[str, Any] = {"name": self.name, "arrival": str(self.arrival)}
        if self.classes:
            values["classes"] = {name: c.to_dict() for name, c in self.classes.items()}
        else:
            values |= {name: str(getattr(self, name)) for name in _LENGTHS_OF_ALL}
        if self.shared_prefix is not None:
            values["shared_prefix"] = self.shared_prefix.to_dict()
        if self.retries:
            values["retries"] = self.retries
        return values


def load_spec(source: str | Path, overrides: Iterable[str] = ()) -> WorkloadSpec:
    """Read a workload.

    Args:
        source: a preset's name, or a YAML file with the keys of `WorkloadSpec`.
        overrides: such as `prompt_tokens=uniform:32..192` or `arrival=gamma:burstiness=0.5`; they win.

    Raises:
        UserError: no such preset or file, an unknown key, or a value that cannot be.
    """
    values: dict[str, Any] = _read_source(str(source))
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UserError(f"{override!r} overrides nothing: write for example prompt_tokens=uniform:32..192")
        _require_overridable(key.strip(), value.strip(), values.get("classes"))
        values[key.strip()] = value.strip()
    return spec_from_dict(values)


def spec_from_dict(values: Mapping[str, Any]) -> WorkloadSpec:
    """The spec of a mapping with its keys, as `run.json` stores it.

    Raises:
        UserError: an unknown or missing key, or a value that cannot be.
    """
    try:
        return WorkloadSpec.model_validate(dict(values))
    except ValidationError as error:
        keys = ", ".join(WorkloadSpec.model_fields)
        raise UserError(f"the workload is not possible: {readable(error)}; its keys are {keys}") from None


def _require_overridable(key: str, value: str, classes: object) -> None:
    if key in _LENGTHS_OF_ALL and classes:
        names = ", ".join(map(str, classes)) if isinstance(classes, Mapping) else str(classes)
        raise UserError(
            f"{key}={value} is not possible with this workload: each of its classes ({names}) has lengths of its own; "
            "change them in a YAML file"
        )


def _read_source(source: str) -> dict[str, Any]:
    if source in PRESETS:
        return {"name": source, **PRESETS[source]}
    path = Path(source)
    if not path.is_file():
        raise UserError(f"unknown workload {source!r}: choose {', '.join(PRESETS)}, or give a YAML file that exists")
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"the workload {source} cannot be read as YAML: {reason}") from None
    if not isinstance(values, dict):
        raise UserError(f"the workload {source} holds no keys: write for example prompt_tokens: uniform:32..192")
    return {"name": path.stem, **{str(k): v for k, v in values.items()}}
