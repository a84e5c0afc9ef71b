"""A diff as separate checks, as CI systems list them: one for each line that the exit code depends on."""

from dataclasses import dataclass

from reports.diff.diff import Diff, Verdict
from reports.diff.text import difference, moved_lines


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the gate.

    Attributes:
        name: the metric, the rule, `slo`, `runs` or `exact`.
        text: what came of it, in one line.
    """

    name: str
    verdict: Verdict
    text: str


def checks_of(diff: Diff) -> tuple[Check, ...]:
    """Every check of a gate, in the order of its table."""
    found = []
    if diff.slo is not None and diff.slo.gated:
        states = f"{diff.slo.slo} was {diff.slo.base}, is {diff.slo.new}; {diff.slo.detail}"
        found.append(Check("slo", diff.slo.verdict, states))
    for line in diff.gated:
        if line.verdict is not None:
            numbers = f"{line.metric.write(line.base)} to {line.metric.write(line.new)}"
            parts = [f"{line.metric.title} {numbers}", difference(line, diff), line.reason]
            found.append(Check(line.name, line.verdict, ", ".join(part for part in parts if part)))
    found += [Check("runs", Verdict.CANNOT_TELL, reason) for reason in diff.distrust]
    if diff.strict:
        for moved in diff.moved:
            verdict = Verdict.WORSE if moved else Verdict.SAME
            found.append(Check(f"exact, seed {moved.seed}", verdict, " ".join(moved_lines(moved))))
    return tuple(found)
