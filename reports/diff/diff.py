"""A diff: what was compared, what came of each metric, and the exit code that follows."""

from dataclasses import dataclass
from enum import StrEnum

from reports.diff.comparable import Differences
from reports.diff.estimate import Design
from reports.diff.metrics import Metric
from reports.diff.moved import Moved
from reports.diff.rules import Rule
from reports.diff.side import Side

FINE, REGRESSION, CANNOT_TELL = 0, 1, 3


class Verdict(StrEnum):
    """What can be said of one line.

    `fine` is what a rule asks for: not beyond its limit. A metric that neither side has is `not measured`.
    """

    BETTER = "better"
    SAME = "same"
    FINE = "fine"
    WORSE = "worse"
    CANNOT_TELL = "cannot tell"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Line:
    """One metric, compared.

    Attributes:
        base, new: over the runs that were compared, in the metric's unit; None where it was not measured.
        change: of new against base: relative, or in the metric's unit where `relative` is false; None where one of them
            is not known.
        low, high: its 90 % interval: either end is wrong in 5 % of cases. Of simulated sides the range over the seeds.
            None where the runs give none.
        verdict: None where the line is only shown.
        reason: why, where the interval does not speak for itself.
        rule: what it was judged by; None for the default gate.
        gated: the exit code depends on it.
        design, units, freedom, has_noise, has_sessions: see `estimate.Estimate`; None where there is none.
    """

    metric: Metric
    base: float | None
    new: float | None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    relative: bool = True
    verdict: Verdict | None = None
    reason: str = ""
    rule: Rule | None = None
    gated: bool = False
    design: Design | None = None
    units: int | None = None
    freedom: float | None = None
    has_noise: bool | None = None
    has_sessions: bool | None = None

    @property
    def name(self) -> str:
        """What the gate calls it: the rule, else the metric."""
        return str(self.rule) if self.rule else self.metric.name


@dataclass(frozen=True, slots=True)
class SloLine:
    """The SLO's verdict over each side's runs together.

    Attributes:
        slo: its text.
        base, new: `feasible`, `infeasible` or `undecided`.
        detail: what each bound came to on the new side.
    """

    slo: str
    base: str
    new: str
    verdict: Verdict
    detail: str
    gated: bool


@dataclass(frozen=True)
class Diff:
    """Two sides, judged.

    Attributes:
        lines: the gated ones first.
        slo: None without an SLO.
        moved: what differs step by step and request by request, by seed; only where both sides were simulated.
        exact: both sides were simulated under the same traffic: no statistics, equal or not.
        strict: anything that moved is a regression.
        distrust: why runs were left out; with one of them the gate can at best not tell.
        notices: what a reader must know before believing it.
        margin: relative change that must not go unseen.
    """

    base: Side
    new: Side
    differences: Differences
    lines: tuple[Line, ...]
    slo: SloLine | None
    moved: tuple[Moved, ...]
    exact: bool
    strict: bool
    distrust: tuple[str, ...]
    notices: tuple[str, ...]
    margin: float

    @property
    def gated(self) -> tuple[Line, ...]:
        """The lines that the exit code depends on."""
        return tuple(line for line in self.lines if line.gated)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Of everything that the exit code depends on."""
        found = [line.verdict for line in self.gated if line.verdict is not None]
        if self.slo is not None and self.slo.gated:
            found.append(self.slo.verdict)
        if self.distrust:
            found.append(Verdict.CANNOT_TELL)
        if self.strict and any(self.moved):
            found.append(Verdict.WORSE)
        return tuple(found)

    @property
    def exit_code(self) -> int:
        """0 fine, 1 regression, 3 cannot tell."""
        if Verdict.WORSE in self.verdicts:
            return REGRESSION
        return CANNOT_TELL if Verdict.CANNOT_TELL in self.verdicts else FINE
