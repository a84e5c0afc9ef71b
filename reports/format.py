"""Numbers as text. Every number that a person reads is written here, so that all reports agree.

What was not measured (None, NaN, infinite) is an em dash, never 0.
"""

import math
import unicodedata
from collections.abc import Callable
from typing import TypeGuard

DASH = "\N{EM DASH}"
MINUS = "\N{MINUS SIGN}"

GIB = 1 << 30
MIB = 1 << 20


def is_known(value: object) -> TypeGuard[float]:
    """Whether `value` is a measured, finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits, whole numbers in full with thousands separators: 0.0123, 6.25, 1,234."""
    if value is None or not is_known(value):
        return DASH
    if value == 0:
        return "0"
    # The rounded value decides the decimals, so that 9.999 gives 10.0 and not 10.00.
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{value:,.{decimals}f}".replace("-", MINUS)


def count(value: float | None) -> str:
    """A whole number with thousands separators."""
    return f"{round(value):,}".replace("-", MINUS) if value is not None and is_known(value) else DASH


def milliseconds(value: float | None) -> str:
    """A duration given in milliseconds, in the unit a person would choose: 850 µs, 9.42 ms, 1.24 s, 2 min 05 s."""
    if value is None or not is_known(value):
        return DASH
    if value != 0 and abs(value) < 0.9995:
        return f"{number(value * 1e3)} µs"
    if abs(value) < 999.5:
        return f"{number(value)} ms"
    if abs(value) < 59_950:
        return f"{number(value / 1e3)} s"
    total_s = round(value / 1e3)
    if total_s < 3600:
        return f"{total_s // 60} min {total_s % 60:02d} s"
    return f"{total_s // 3600} h {total_s % 3600 // 60:02d} min"


def seconds(value: float | None) -> str:
    """A duration given in seconds."""
    return milliseconds(value * 1e3) if value is not None and is_known(value) else DASH


def percent(share: float | None) -> str:
    """A share in [0, 1] as a percentage with one decimal."""
    return f"{share:.1%}".replace("-", MINUS) if share is not None and is_known(share) else DASH


def required_percent(share: float | None) -> str:
    """A share that the SLO asks for, in as many decimals as it has: 95%, 99.9%."""
    return f"{share * 100:.6g}%" if share is not None and is_known(share) else DASH


def attained_percent(share: float | None) -> str:
    """A share that has to reach a bound, rounded down so that one just missed never reads as met."""
    return f"{math.floor(share * 1000 + 1e-9) / 10:.1f}%" if share is not None and is_known(share) else DASH


def change(relative: float | None) -> str:
    """A relative change with its sign: +23.1%, −2.0%."""
    if relative is None or not is_known(relative):
        return DASH
    text = f"{abs(relative):.1%}"
    if text == "0.0%":
        return text
    return ("+" if relative > 0 else MINUS) + text


def interval(low: float | None, high: float | None, write: Callable[[float | None], str]) -> str:
    """Both ends of an interval, written by `write`, a unit they share only once; a dash when either is unknown."""
    if not is_known(low) or not is_known(high):
        return DASH
    first, last = write(low), write(high)
    if " " in first and first.split(" ", 1)[1:] == last.split(" ", 1)[1:]:
        first = first.split(" ", 1)[0]
    return f"{first} to {last}"


def attained_range(low: float | None, high: float | None) -> str:
    """The interval of a share that has to reach a bound, short enough for a column: 94.3–98.6%."""
    if not is_known(low) or not is_known(high):
        return DASH
    return f"{attained_percent(low).removesuffix('%')}\N{EN DASH}{attained_percent(high)}"


def request_rate(value: float | None) -> str:
    """Requests per second."""
    return f"{number(value)} req/s" if value is not None and is_known(value) else DASH


def token_rate(value: float | None) -> str:
    """Tokens per second."""
    return f"{number(value)} tok/s" if value is not None and is_known(value) else DASH


def size(value: float | None) -> str:
    """Bytes in GiB, or MiB below one tenth of a GiB."""
    if value is None or not is_known(value):
        return DASH
    return f"{number(value / GIB)} GiB" if value >= GIB / 10 else f"{number(value / MIB)} MiB"


def plain(value: object) -> str:
    """A value as the command line takes it: no separators, nothing rounded."""
    if value is None:
        return DASH
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else clean(str(value))


def text(value: object) -> str:
    """Any text from a record, on one line; a dash when there is none."""
    return DASH if value is None or value == "" else clean(str(value))


def clean(value: str) -> str:
    """`value` without control and formatting characters, which could move a terminal's cursor or turn text around."""
    return "".join(" " if unicodedata.category(c).startswith("C") else c for c in value)
