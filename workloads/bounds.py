"""One bound of an SLO and its text form, `p95_ttft=1s`."""

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cache

from engine.errors import UserError

METRICS = ("ttft", "tpot", "itl", "e2e", "queue")
RIGHT_FORM = "write for example p95_ttft=1s,p95_tpot=60ms"

_UNIT_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000}
_UNITS = "us, ms, s or m"
_STATISTICS = "mean, max, or p50 to p99.9"
_LONGEST_NS = 24 * 3600 * 1_000_000_000
_QUANTILE = re.compile(r"p(\d{2}(?:\.\d{1,2})?)")
_NUMBER_AND_UNIT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))\s*([^\d\s.]*)")


@dataclass(frozen=True, slots=True)
class Bound:
    """An upper bound on one statistic of one metric.

    Attributes:
        metric: one of `METRICS`.
        statistic: `mean`, `max`, or `pNN`.
        bound_ns: the most it may be, in nanoseconds, above 0.
    """

    metric: str
    statistic: str
    bound_ns: int

    @property
    def required_share(self) -> Fraction | None:
        """Share of the requests that must lie within the bound: 19/20 for p95, 1 for max, None for a mean.

        A fraction, so that 95 of 100 meet a p95 exactly.
        """
        return _required_share(self.statistic)

    @property
    def name(self) -> str:
        """Statistic and metric, such as `p95_ttft`."""
        return f"{self.statistic}_{self.metric}"

    def __str__(self) -> str:
        return f"{self.name}={format_duration(self.bound_ns)}"


@cache
def _required_share(statistic: str) -> Fraction | None:
    if statistic == "mean":
        return None
    return Fraction(1) if statistic == "max" else Fraction(statistic[1:]) / 100


def format_duration(duration_ns: int) -> str:
    """The duration in the largest of s, ms and us in which it is a whole number; else in us."""
    for unit in ("s", "ms"):
        if duration_ns % _UNIT_NS[unit] == 0:
            return f"{duration_ns // _UNIT_NS[unit]}{unit}"
    return f"{(Decimal(duration_ns) / _UNIT_NS['us']).normalize():f}us"


def parse_bound(text: str) -> Bound:
    """Read `pNN_metric=number unit`; `<=` does for `=`.

    Raises:
        UserError: not of that form; the message shows the form that is.
    """
    name, separator, value = text.replace("<=", "=").lower().partition("=")
    name, value = name.strip(), value.strip()
    if not separator or not name or not value:
        raise UserError(f"{text.strip()!r} is not a bound of an SLO: {RIGHT_FORM}")
    statistic, underscore, metric = name.partition("_")
    if not underscore:
        right = f"p95_{name}={value}" if name in METRICS else RIGHT_FORM
        raise UserError(f"{text.strip()!r} names no statistic and metric (as in p95_ttft): write for example {right}")
    if metric not in METRICS:
        raise UserError(f"unknown metric {metric!r} in {text.strip()!r}: choose one of {', '.join(METRICS)}")
    return Bound(metric, _canonical_statistic(statistic, text), _parse_duration(name, value))


def bound_from_ms(metric: str, milliseconds: str, statistic: str) -> Bound:
    """A bound whose number is in milliseconds and has no unit.

    Raises:
        UserError: an unknown metric, or a number that is none or not positive.
    """
    if metric not in METRICS:
        raise UserError(f"unknown metric {metric!r}: choose one of {', '.join(METRICS)}")
    try:
        number = Decimal(milliseconds)
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite():
        raise UserError(f"{metric}:{milliseconds} is not a number of milliseconds: write for example {metric}:1000")
    return Bound(metric, statistic, _to_ns(f"{metric}:{milliseconds}", number, "ms"))


def _canonical_statistic(statistic: str, text: str) -> str:
    if statistic in ("mean", "max"):
        return statistic
    match = _QUANTILE.fullmatch(statistic)
    percent = Decimal(match[1]) if match else Decimal(0)
    if not Decimal(50) <= percent <= Decimal("99.9"):
        raise UserError(f"unknown statistic {statistic!r} in {text.strip()!r}: choose {_STATISTICS}")
    return f"p{percent.normalize():f}"


def _parse_duration(name: str, value: str) -> int:
    match = _NUMBER_AND_UNIT.fullmatch(value)
    if match is None:
        raise UserError(f"{name}={value} is not a time: write a number and a unit ({_UNITS}), such as {name}=1s")
    number, unit = match.groups()
    if not unit:
        raise UserError(f"{name}={value} has no unit: write {name}={value}s or {name}={value}ms ({_UNITS})")
    if unit not in _UNIT_NS:
        raise UserError(f"{name}={value} has the unknown unit {unit!r}: use {_UNITS}, such as {name}={number}ms")
    return _to_ns(f"{name}={value}", Decimal(number), unit)


def _to_ns(text: str, number: Decimal, unit: str) -> int:
    if number <= 0:
        raise UserError(f"{text} is not possible: a bound is above 0, {RIGHT_FORM}")
    duration_ns = number * _UNIT_NS[unit]
    if not 1 <= duration_ns <= _LONGEST_NS:
        raise UserError(f"{text} is not possible: a bound lies between 1 nanosecond and 24 hours")
    return int(duration_ns)
