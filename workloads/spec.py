"""What a workload is: arrivals and lengths, from a preset, a YAML file, and overrides on top."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from engine.errors import UserError
from workloads.arrivals import ARRIVALS, Arrivals, OpenLoop, Poisson
from workloads.kinds import parse_kind, readable
from workloads.lengths import LENGTHS, Lengths

PRESETS: dict[str, dict[str, str]] = {
    "chat": {"prompt_tokens": "uniform:500..2000", "output_tokens": "uniform:200..800"},
    "chat-small": {"prompt_tokens": "uniform:32..192", "output_tokens": "uniform:16..64"},
    "summarize": {"prompt_tokens": "uniform:3000..8000", "output_tokens": "uniform:64..256"},
}
"""Workloads by name: `chat-small` is for small models and CPUs, `summarize` reads much and writes little."""


class WorkloadSpec(BaseModel):
    """What arrives, without rate, seed and duration.

    Attributes:
        name: for people.
        arrival: how requests arrive; Poisson unless told otherwise.
        prompt_tokens, output_tokens: distributions of lengths in tokens.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    arrival: Arrivals = Poisson()
    prompt_tokens: Lengths
    output_tokens: Lengths

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

    @property
    def is_open_loop(self) -> bool:
        """Arrivals have a schedule, and so a rate."""
        return isinstance(self.arrival, OpenLoop)

    @property
    def max_request_tokens(self) -> int:
        """Prompt and output of the longest request there can be."""
        return self.prompt_tokens.max_tokens + self.output_tokens.max_tokens

    @property
    def mean_prompt_tokens(self) -> float:
        """Expected prompt length in tokens."""
        return self.prompt_tokens.mean_tokens

    @property
    def mean_output_tokens(self) -> float:
        """Expected output length in tokens."""
        return self.output_tokens.mean_tokens

    def to_dict(self) -> dict[str, str]:
        """The spec as `spec_from_dict` and a YAML file take it."""
        return {name: str(getattr(self, name)) for name in type(self).model_fields}


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
