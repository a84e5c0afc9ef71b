"""`tune ci`: a candidate held against a baseline, from the first run to the verdict."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.errors import UserError
from reports.diff.comparable import differences, require_comparable
from reports.diff.diff import CANNOT_TELL, REGRESSION, Diff
from reports.diff.ended import Ended
from reports.diff.judge import MARGIN, judge
from reports.diff.load import load_side
from reports.diff.rules import Rule
from reports.diff.side import SideRun
from tuner.baseline.files import Origin
from tuner.baseline.record import Baseline, other_machine
from tuner.baseline.store import add_run, write_baseline
from tuner.ci.checkout import CheckoutTarget
from tuner.ci.turns import Arm, BrokeOff, measure_runs
from tuner.compare import in_turn
from tuner.progress import ProgressDisplay
from tuner.settings import Settings
from tuner.targets.bundled import BundledTarget, Load
from tuner.whole_run import Measurer

PAIRS = 5
BASELINE, CANDIDATE = "baseline", "candidate"
SIDES = {BASELINE: "side-a", CANDIDATE: "side-b"}
"""Name of an arm to the folder that keeps its runs."""
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is held against a baseline.

    Attributes:
        settings: those that it is measured with.
        checkout: the folder whose code measures it; None for this one.
        base_checkout: likewise for the baseline's settings.
    """

    settings: Settings
    checkout: Path | None = None
    base_checkout: Path | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """What is let through.

    Attributes:
        rules, margin, strict: see `reports.diff.judge.judge`.
    """

    rules: Sequence[Rule] = ()
    margin: float = MARGIN
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it.

    Attributes:
        folder: with both sides as baselines.
        baseline: its name.
        diff: None where there was no pair of runs to judge.
        broke_off: a run ended with an error, which ended the measurement.
        interrupted: it was stopped before its end.
    """

    folder: Path
    baseline: str
    diff: Diff | None
    broke_off: BrokeOff | None = None
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """0 fine, 1 regression, 3 cannot tell, 130 interrupted. A candidate that breaks off is a regression."""
        if self.interrupted:
            return INTERRUPTED
        if self.broke_off is not None:
            return REGRESSION if self.broke_off.arm.name == CANDIDATE else CANNOT_TELL
        assert self.diff is not None
        return self.diff.exit_code

    @property
    def ended(self) -> Ended:
        """What to say where there is no diff."""
        sentence = "Interrupted before a pair of runs was whole: there is nothing to judge."
        if self.broke_off is not None:
            sentence = f"{'Regression' if self.exit_code == REGRESSION else 'Cannot tell'}: {self.broke_off}."
        return Ended(self.baseline, CANDIDATE, self.exit_code, sentence)


def run_gate(
    baseline: Baseline,
    candidate: Candidate,
    folder: Path,
    display: ProgressDisplay,
    *,
    gate: Gate = Gate(),
    pairs: int | None = None,
) -> Outcome:
    """Measure a baseline's settings and a candidate in turn on this machine, and judge the difference.

    On a simulated device nothing is noise: the baseline's own runs are one side, unless a checkout is to measure it,
    and the candidate is simulated once for each of their seeds.

    Args:
        folder: exists and is empty; takes both sides as baselines, `side-a` and `side-b`, run by run.
        pairs: runs of each side, with seeds from the baseline's first one on; None for `PAIRS`.

    Raises:
        UserError: a device, checkout, model or settings that cannot be, or sides that cannot be compared.
    """
    if gate.strict and not baseline.simulated:
        raise UserError("--exact is for baselines of a simulated device: on a real one no two runs are the same")
    sides = _Sides(baseline, candidate, folder, display)
    broke_off, interrupted = None, False
    try:
        with display.live():
            sides.measure(pairs)
    except BrokeOff as error:
        broke_off = error
    except KeyboardInterrupt:
        interrupted = True
    diff = sides.judge(gate) if broke_off is None and sides.pairs_made else None
    if diff is not None and interrupted:
        made, planned = sides.pairs_made, sides.pairs_planned
        diff = replace(diff, notices=(f"Interrupted: {made} of {planned} pairs of runs were measured.", *diff.notices))
    return Outcome(folder, baseline.name, diff, broke_off, interrupted)


class _Sides:
    """The two sides of a gate: what measures each, and what was kept of it."""

    def __init__(self, baseline: Baseline, candidate: Candidate, folder: Path, display: ProgressDisplay) -> None:
        self._baseline, self._candidate, self._folder, self._display = baseline, candidate, folder, display
        self._kept: dict[str, Baseline] = {}
        # Read before anything is measured: what is damaged is found out now.
        self._stored = load_side(baseline.path)
        self.pairs_planned = 0
        here = self._engine_here()
        self._b = Arm(CANDIDATE, self._target(candidate.checkout, here), candidate.settings)
        self._a = None
        if not self._is_stored:
            self._a = Arm(BASELINE, self._target(candidate.base_checkout, here), baseline.settings)

    @property
    def _is_stored(self) -> bool:
        """The baseline's runs are what measuring it again would give."""
        return self._baseline.simulated and self._candidate.base_checkout is None

    def _engine_here(self) -> BundledTarget | None:
        """The engine of this process, loaded once for both sides; None where neither needs it."""
        candidate, baseline, say = self._candidate, self._baseline, self._display.say
        base_is_here = candidate.base_checkout is None and not self._is_stored
        if candidate.checkout is not None and not base_is_here:
            return None
        first = baseline.settings if base_is_here else candidate.settings
        target = BundledTarget(baseline.target_options, baseline.spec, first, say)
        if reason := other_machine(baseline.record, target):
            say(f"the figures stored in {baseline.name} come from another machine and are not used: {reason}")
        if base_is_here and candidate.checkout is None and candidate.settings == baseline.settings:
            say("both sides have the baseline's settings and this code: what differs is the gate's own error")
        if candidate.checkout is None:
            # What does not fit is found out now, not after the first run of the other side.
            target.prepare(candidate.settings)
        return target

    def _target(self, checkout: Path | None, here: BundledTarget | None) -> Measurer:
        if checkout is not None:
            return CheckoutTarget(checkout, self._baseline.target_options, self._baseline.spec)
        assert here is not None
        return here

    def measure(self, pairs: int | None) -> None:
        """Make and keep all runs; what stops it leaves those that were whole."""
        turns = self._turns(pairs)
        if self._a is None:
            self._keep_stored([load.seed for _, load in turns])
        measure_runs(turns, self._baseline.slo, display=self._display, keep=self._keep)

    def _turns(self, pairs: int | None) -> list[tuple[Arm, Load]]:
        baseline, arms = self._baseline, [arm for arm in (self._a, self._b) if arm is not None]
        seeds: Sequence[int] = baseline.seeds
        if not baseline.simulated:
            seeds = range(seeds[0], seeds[0] + (pairs or PAIRS))
        elif pairs is not None:
            self._display.say("--pairs does nothing on a simulated device: one run for each of the baseline's seeds")
        self.pairs_planned = len(seeds)
        return [(arm, baseline.load_of(seeds[k])) for arm, k in in_turn(arms, len(seeds))]

    def _keep_stored(self, seeds: Sequence[int]) -> None:
        by_seed = {run.seed: run for run in self._stored.runs}
        origin = Origin("baseline", str(self._baseline.path), self._baseline.card)
        self._kept[BASELINE] = write_baseline(self._folder / SIDES[BASELINE], origin, [by_seed[seed] for seed in seeds])

    def _keep(self, arm: Arm, run: SideRun) -> None:
        if arm.name in self._kept:
            self._kept[arm.name] = add_run(self._kept[arm.name], run)
        else:
            origin = Origin("ci", str(self._folder), self._baseline.card)
            self._kept[arm.name] = write_baseline(self._folder / SIDES[arm.name], origin, [run])

    @property
    def pairs_made(self) -> int:
        """Seeds of which both sides have a run."""
        seeds = [set(kept.seeds) for kept in self._kept.values()]
        return len(seeds[0] & seeds[1]) if len(seeds) == 2 else 0

    def judge(self, gate: Gate) -> Diff:
        """What the runs say, read back from where they were kept: `tune diff` of both folders says the same."""
        base = load_side(self._folder / SIDES[BASELINE], self._baseline.name)
        if self._is_stored:
            # The copy is of now; its runs are not.
            own = {key: self._stored.meta[key] for key in ("created", "tool_version")}
            base = replace(base, meta={**base.meta, **own})
        new = load_side(self._folder / SIDES[CANDIDATE], CANDIDATE)
        require_comparable(differences(base, new))
        noise = [] if self._baseline.simulated else [self._stored]
        return judge(base, new, rules=gate.rules, noise=noise, margin=gate.margin, strict=gate.strict)
