"""Classes of requests: a workload's parts, each with its share of the traffic, its urgency and its lengths."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.errors import UserError
from workloads.kinds import parse_kind, readable
from workloads.lengths import LENGTHS, Lengths

ONLY_CLASS = "all"
"""What the one class of a workload without classes is called."""

_EXAMPLE = "{share: 0.9, priority: 0, prompt_tokens: uniform:16..64, output_tokens: uniform:8..24}"


class RequestClass(BaseModel):
    """One part of a workload's requests.

    Attributes:
        share: weight of the class among all, above 0; shares are divided by their sum.
        priority: lower is more urgent.
        prompt_tokens, output_tokens: distributions of lengths in tokens.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: float = Field(gt=0, allow_inf_nan=False)
    priority: int = 0
    prompt_tokens: Lengths
    output_tokens: Lengths

    @property
    def max_request_tokens(self) -> int:
        """Prompt and output of the longest request of the class."""
        return self.prompt_tokens.max_tokens + self.output_tokens.max_tokens

    def to_dict(self) -> dict[str, Any]:
        """The class as `read_classes` takes it."""
        return {
            "share": self.share,
            "priority": self.priority,
            "prompt_tokens": str(self.prompt_tokens),
            "output_tokens": str(self.output_tokens),
        }


def read_classes(value: object) -> dict[str, RequestClass]:
    """Read the classes of a workload, a mapping of their names to the fields of `RequestClass`.

    Raises:
        UserError: not of that form, an unknown or missing field, or a value that cannot be.
    """
    if not isinstance(value, Mapping) or not value:
        raise UserError(f"classes={value!r} is not possible: map each class's name to {_EXAMPLE}")
    return {str(name): _read_class(f"classes.{name}", fields) for name, fields in value.items()}


def _read_class(what: str, value: object) -> RequestClass:
    if isinstance(value, RequestClass):
        return value
    if not isinstance(value, Mapping):
        raise UserError(f"{what}={value!r} is not possible: write for example {_EXAMPLE}")
    fields = {str(key): field for key, field in value.items()}
    for name in ("prompt_tokens", "output_tokens"):
        if name in fields:
            fields[name] = parse_kind(fields[name], LENGTHS, f"{what}.{name}")
    try:
        return RequestClass.model_validate(fields)
    except ValidationError as error:
        keys = ", ".join(RequestClass.model_fields)
        raise UserError(f"{what} is not possible: {readable(error)}; its keys are {keys}") from None
