"""Families with parameters (arrivals, lengths) and their compact text form, `uniform:500..2000`."""

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from engine.errors import UserError


class Kind(BaseModel):
    """One member of a family. Its fields are its parameters; a wrong or unknown one is refused.

    The text form is `kind:name=value,...`. A value without a name is the field `positional`, `a..b` stands for
    `low=a,high=b`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: ClassVar[str]
    example: ClassVar[str]
    positional: ClassVar[str | None] = None

    def __str__(self) -> str:
        """The text form, every parameter that is not at its default named in it."""
        values = self.model_dump(exclude_defaults=True)
        items = []
        if values.get("low") is not None and values.get("high") is not None:
            items.append(f"{values.pop('low')}..{values.pop('high')}")
        items += [f"{name}={value}" for name, value in values.items()]
        return f"{self.kind}:{','.join(items)}" if items else self.kind


K = TypeVar("K", bound=Kind)


def registry(*kinds: type[K]) -> dict[str, type[K]]:
    """The members of a family by name."""
    return {k.kind: k for k in kinds}


def parse_kind(value: object, family: Mapping[str, type[K]], what: str) -> K:
    """Read a member of a family from its text form, or from a mapping with the key `kind` and the parameters.

    Args:
        value: text, number or mapping; a bare number is `fixed` where the family has it.
        family: what there is to choose from.
        what: the name of the thing, for errors.

    Raises:
        UserError: not of that form, an unknown kind or parameter, or a value out of range.
    """
    if isinstance(value, Kind) and family.get(value.kind) is type(value):
        return value
    if isinstance(value, Mapping):
        parameters = {str(k): v for k, v in value.items()}
        kind = str(parameters.pop("kind", ""))
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        kind, parameters = _split(str(value).strip(), family, what)
    else:
        raise UserError(f"{what}={value!r} is not possible: {_choices(family)}")
    if kind not in family:
        raise UserError(f"{what}={value!r} has the unknown kind {kind!r}: {_choices(family)}")
    try:
        return family[kind].model_validate(parameters)
    except ValidationError as error:
        raise UserError(f"{what}={value!r}: {readable(error)}; write for example {family[kind].example}") from None


def readable(error: ValidationError) -> str:
    """One line for a person, in place of pydantic's list."""
    faults = []
    for fault in error.errors():
        name = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            faults.append(f"there is no {name!r}")
        elif fault["type"] == "missing":
            faults.append(f"{name!r} is missing")
        else:
            text = fault["msg"].removeprefix("Value error, ")
            faults.append(f"{name}={fault['input']!r} is not possible ({text})" if name else text)
    return ", ".join(faults)


def _choices(family: Mapping[str, type[Kind]]) -> str:
    return "choose among " + ", ".join(k.example for k in family.values())


def _split(text: str, family: Mapping[str, type[K]], what: str) -> tuple[str, dict[str, Any]]:
    kind, _, rest = text.partition(":")
    if kind not in family and not rest and "fixed" in family:
        kind, rest = "fixed", text
    parameters: dict[str, Any] = {}
    for item in (piece.strip() for piece in rest.split(",") if piece.strip()):
        name, equals, value = item.partition("=")
        if equals:
            pairs = {name.strip(): value.strip()}
        elif ".." in item:
            low, _, high = item.partition("..")
            pairs = {"low": low.strip(), "high": high.strip()}
        else:
            positional = family[kind].positional if kind in family else None
            if positional is None:
                raise UserError(f"{what}={text!r}: {item!r} names no parameter: {_choices(family)}")
            pairs = {positional: item}
        if twice := sorted(pairs.keys() & parameters.keys()):
            raise UserError(f"{what}={text!r} gives {', '.join(twice)} twice: give it once")
        parameters |= pairs
    return kind, parameters
