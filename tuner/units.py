"""Durations and memory sizes as people write them on the command line."""

import re
from decimal import Decimal

from engine.errors import UserError

_SECONDS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_BYTES = {
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
}


def parse_duration_s(option: str, text: str) -> float:
    """`90s`, `200ms`, `10m` or `1h30m` in seconds.

    Raises:
        UserError: another form, or nothing above 0.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smh])", text.strip().lower())
    if not parts or "".join(n + u for n, u in parts) != text.strip().lower():
        raise UserError(f"{option} {text!r} is not a duration: write a number with a unit, such as 90s, 200ms or 1h30m")
    seconds = float(sum(Decimal(number) * _SECONDS[unit] for number, unit in parts))
    if seconds <= 0:
        raise UserError(f"{option} {text!r} is not possible: it must be longer than nothing")
    return seconds


def parse_bytes(option: str, text: str) -> int:
    """`16GiB`, `16g` or `24GB` in bytes.

    Raises:
        UserError: another form, or nothing above 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower())
    if match is None or match[2] not in _BYTES:
        raise UserError(f"{option} {text!r} is not a size: write a number with a unit, such as 16GiB or 24GB")
    size = round(float(match[1]) * _BYTES[match[2]])
    if size <= 0:
        raise UserError(f"{option} {text!r} is not possible: it must be more than nothing")
    return size


def format_duration(seconds: float) -> str:
    """`8m`, `1h 5m` or `42s`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s" if whole % 60 else f"{whole // 60}m"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
