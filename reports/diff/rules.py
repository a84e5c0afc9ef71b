"""`p95_ttft>+5%`: what a user calls a regression, in place of the default gate."""

import math
import re
from dataclasses import dataclass

from engine.errors import UserError
from reports.diff.metrics import metric_named

RIGHT_FORM = "write for example p95_ttft>+5% or goodput<-3%"

_NUMBER = r"\d+(?:\.\d+)?|\.\d+"
_RULE = re.compile(rf"\s*(?P<metric>\w[\w.]*)\s*(?P<relation>[<>])\s*(?P<sign>[+-]?)(?P<number>{_NUMBER})\s*%\s*")


@dataclass(frozen=True, slots=True)
class Rule:
    """A change of one metric that fails the gate.

    Attributes:
        metric: its name.
        above: it fails when the change is above the limit; else when it is below.
        limit: relative change, such as 0.05; above -1.
    """

    metric: str
    above: bool
    limit: float

    def __str__(self) -> str:
        return f"{self.metric}{'>' if self.above else '<'}{self.limit * 100:+.6g}%"


def parse_rule(text: str) -> Rule:
    """Read `METRIC>+N%` or `METRIC<-N%`.

    The sign may be left out where it is the one that the relation suggests for a metric of that direction.

    Raises:
        UserError: another form, an unknown metric, a limit of -100 % or less, or `METRIC<N%`, which most likely lacks
            its minus.
    """
    match = _RULE.fullmatch(text)
    if match is None:
        raise UserError(f"{text!r} is not a rule: {RIGHT_FORM}")
    metric_named(match["metric"])
    above, limit = match["relation"] == ">", float(match["number"]) / 100
    if not above and not match["sign"] and limit > 0:
        number = match["number"]
        raise UserError(
            f"{text!r} fails unless {match['metric']} gains {number} %: write {match['metric']}<-{number}% for a loss "
            f"that is too much, or {match['metric']}<+{number}% if that is meant"
        )
    limit = -limit if match["sign"] == "-" else limit
    if not -1 < limit < math.inf:
        raise UserError(f"{text!r} is not possible: a metric cannot fall by 100 % or more; {RIGHT_FORM}")
    return Rule(match["metric"], above, limit)


def parse_margin(text: str) -> float:
    """Read `10%` as the relative change of 0.1 that must not go unseen.

    Raises:
        UserError: not a percentage above 0 and below 100.
    """
    match = re.fullmatch(rf"\s*({_NUMBER})\s*%\s*", text)
    margin = float(match[1]) / 100 if match else 0.0
    if not 0 < margin < 1:
        raise UserError(f"--margin {text!r} is not possible: write a percentage above 0 and below 100, such as 10%")
    return margin
