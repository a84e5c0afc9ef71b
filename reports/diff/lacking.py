"""Runs that have no number where others have one: what never came is worse than any number."""

from dataclasses import dataclass, replace

from reports.diff.diff import Line, Verdict
from reports.diff.metrics import Metric
from reports.diff.side import Side, SideRun
from workloads.metrics import SAMPLES, in_window

# One run of each side may be luck: nobody knows what the machine does between two runs.
_FEWEST = 2


@dataclass(frozen=True, slots=True)
class Lacking:
    """Which trusted runs lack a metric that others have.

    Attributes:
        base, new: how many of each side lack it.
        base_runs, new_runs: how many there are: those of the shared seeds, or all where no seed is shared.
        reason: the same in words.
    """

    base: int
    new: int
    base_runs: int
    new_runs: int
    reason: str

    @property
    def proven(self) -> bool:
        """Every run of the base has it, and most of the new ones do not."""
        return not self.base and self.new * 2 > self.new_runs and min(self.base_runs, self.new_runs) >= _FEWEST


def lacking(metric: Metric, base: Side, new: Side) -> Lacking | None:
    """The runs that lack a metric; None where all have it, or where it has nothing to do with any of them."""
    shared = {run.seed for run in base.trusted} & {run.seed for run in new.trusted}
    ours, theirs = ([run for run in side.trusted if not shared or run.seed in shared] for side in (base, new))
    without = [[run for run in runs if metric.read(run.record) is None] for runs in (ours, theirs)]
    missed = [*without[0], *without[1]]
    if not ours or not theirs or not missed:
        return None
    never_came = any(_never_came(metric, run) for run in missed)
    if len(missed) == len(ours) + len(theirs) and not never_came:
        return None
    told = []
    for side, runs, those in ((base, ours, without[0]), (new, theirs, without[1])):
        if those:
            told.append(f"in {len(those)} of {len(runs)} run{'s' * (len(runs) != 1)} of {side.name}")
    what = "never reached" if never_came else "not measured"
    reason = f"{what} {' and '.join(told)}"
    return Lacking(len(without[0]), len(without[1]), len(ours), len(theirs), reason)


def with_lacking(line: Line, found: Lacking | None) -> Line:
    """The line of a comparison of the runs that do have the metric, in the light of those that do not.

    Only `worse` can stay: what the others say of `same` or `better` is nothing that holds for all.
    """
    if found is None or (line.verdict is Verdict.WORSE and not found.base):
        return line
    proven = found.proven and _bad_is_beyond(line)
    return replace(line, verdict=Verdict.WORSE if proven else Verdict.CANNOT_TELL, reason=found.reason)


def exactly_lacking(line: Line, base: Side, new: Side) -> Line:
    """The same of simulated sides, where a seed's run cannot come out otherwise: one that lacks it is proof."""
    found = lacking(line.metric, base, new)
    if found is None:
        return line
    shared = {run.seed for run in base.trusted} & {run.seed for run in new.trusted}
    before, now = (_seeds_without(line.metric, side) & shared for side in (base, new))
    if before == now:
        return line
    if now > before and _bad_is_beyond(line):
        return replace(line, verdict=Verdict.WORSE, reason=found.reason)
    if line.verdict is Verdict.WORSE:
        return replace(line, reason=found.reason)
    return replace(line, verdict=Verdict.CANNOT_TELL, reason=found.reason)


def _bad_is_beyond(line: Line) -> bool:
    """What is worse than any number fails the line; not so by a rule that asks for a gain, or of what has no good."""
    smaller = line.metric.smaller_is_better
    return smaller is not None and (line.rule is None or line.rule.above == smaller)


def _seeds_without(metric: Metric, side: Side) -> set[int]:
    return {run.seed for run in side.trusted if metric.read(run.record) is None}


def _never_came(metric: Metric, run: SideRun) -> bool:
    """Some of its requests should have had a value and had none."""
    if metric.latency is None:
        return False
    sample = SAMPLES[metric.latency[1]]
    return any(sample(request).missing for request in in_window(run.record.request_records()))
