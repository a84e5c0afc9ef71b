"""Kinds of settings: how a value is read from the command line, and on which scale it is searched."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from engine.errors import UserError
from tuner.units import parse_bytes, parse_duration_s

OFF = "off"
MIB = 1 << 20
_SWITCH = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


class Kind(ABC):
    """What a setting's values are. The engine's configs say which of them are possible."""

    @property
    @abstractmethod
    def values(self) -> str:
        """The possible values in a few words."""

    @abstractmethod
    def read(self, name: str, text: str) -> Any:
        """The value of a text, which has no space around it.

        Raises:
            UserError: not a value of this kind.
        """

    @property
    def choices(self) -> tuple[Any, ...] | None:
        """All values, where they are few and known."""
        return None


class NumberKind(Kind):
    """A number, which can be searched between two ends.

    Attributes:
        whole: an integer.
        logarithmic: drawn on a logarithmic scale, so that 1 to 2 counts as much as 100 to 200.
    """

    whole: ClassVar[bool]
    logarithmic: ClassVar[bool] = True

    @abstractmethod
    def rounded(self, value: Any) -> Any:
        """The nearest value that people would type; rounding again changes nothing."""


@dataclass(frozen=True, slots=True)
class Count(NumberKind):
    """A whole number of requests or tokens; `can_be_off` lets 0 switch the option off."""

    whole: ClassVar[bool] = True
    can_be_off: bool = False

    @property
    def values(self) -> str:
        return f"1 or more, {OFF}" if self.can_be_off else "1 or more"

    def read(self, name: str, text: str) -> int:
        if self.can_be_off and text.lower() == OFF:
            return 0
        try:
            return int(text)
        except ValueError:
            also = f", or {OFF}" if self.can_be_off else ""
            raise UserError(f"{name}={text!r} is not possible: it must be a whole number{also}") from None

    def rounded(self, value: int) -> int:
        """The nearest number of the form 4..8 times a power of two.

        Neighbours differ by an eighth to a fifth, less than what a measurement can tell apart.
        """
        if value < 8:
            return value
        unit = 1 << (value.bit_length() - 3)
        return round(value / unit) * unit


@dataclass(frozen=True, slots=True)
class Share(NumberKind):
    """A share above 0, at most 1."""

    whole: ClassVar[bool] = False
    logarithmic: ClassVar[bool] = False

    @property
    def values(self) -> str:
        return "above 0, at most 1"

    def read(self, name: str, text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise UserError(f"{name}={text!r} is not possible: it must be a number") from None

    def rounded(self, value: float) -> float:
        """To hundredths."""
        return round(value, 2)


@dataclass(frozen=True, slots=True)
class Duration(NumberKind):
    """Seconds, written with a unit; 0 is off."""

    whole: ClassVar[bool] = False

    @property
    def values(self) -> str:
        return f"200ms, 5s, 1m, {OFF}"

    def read(self, name: str, text: str) -> float:
        if text.lower() in (OFF, "0", "0s"):
            return 0.0
        return parse_duration_s(name, text)

    def rounded(self, value: float) -> float:
        """To two significant digits."""
        return float(f"{value:.2g}")


@dataclass(frozen=True, slots=True)
class Size(NumberKind):
    """Bytes, written with a unit or plainly; 0 is off."""

    whole: ClassVar[bool] = True

    @property
    def values(self) -> str:
        return f"4GiB, 512MiB, bytes, {OFF}"

    def read(self, name: str, text: str) -> int:
        if text.lower() == OFF:
            return 0
        return int(text) if text.isdecimal() else parse_bytes(name, text)

    def rounded(self, value: int) -> int:
        """To MiB."""
        return round(value / MIB) * MIB


@dataclass(frozen=True, slots=True)
class Switch(Kind):
    """On or off."""

    @property
    def values(self) -> str:
        return "true, false"

    def read(self, name: str, text: str) -> bool:
        try:
            return _SWITCH[text.lower()]
        except KeyError:
            raise UserError(f"{name}={text!r} is not possible: it must be true or false") from None

    @property
    def choices(self) -> tuple[bool, ...]:
        return (True, False)


@dataclass(frozen=True, slots=True)
class OneOf(Kind):
    """One of a few names."""

    names: tuple[str, ...]

    @property
    def values(self) -> str:
        return ", ".join(self.names)

    def read(self, name: str, text: str) -> str:
        if text not in self.names:
            raise UserError(f"{name}={text!r} is not possible: choose one of {', '.join(self.names)}")
        return text

    @property
    def choices(self) -> tuple[str, ...]:
        return self.names
