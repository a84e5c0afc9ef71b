"""Making a baseline, and measuring it again: the spread of equal runs is what later differences are judged by."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from engine.errors import UserError
from reports.diff.load import load_side
from reports.diff.side import InMemory, SideRun
from tuner.baseline.record import Baseline, load_of, now, options_of, options_on, other_machine
from tuner.baseline.source import Source, find_source, why_unfit
from tuner.baseline.store import add_run, create, growing, open_baseline, require_new, require_place
from tuner.lock import alone_in
from tuner.progress import ProgressDisplay
from tuner.runner import at
from tuner.settings import Settings
from tuner.targets.bundled import BundledTarget, Measured, TargetOptions
from tuner.whole_run import measure_whole
from workloads.slo import parse_slo
from workloads.spec import spec_from_dict

FREEDOM = 4
"""Degrees of freedom that the measured noise should have. With 1 to 6 of them a limit that is wrong in 5 % of cases
lies 6.3, 2.9, 2.4, 2.1, 2.0 and 1.9 standard errors away: beyond four, another run brings it nearer by a twentieth."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What came of saving a baseline or measuring it again.

    Attributes:
        baseline: None when it was interrupted before there was a run to make it of.
        measured: runs that were added to it.
        planned: runs that were to be added.
        interrupted: before all that were planned.
    """

    baseline: Baseline | None
    measured: int
    planned: int
    interrupted: bool


def save(
    name: str,
    text: str | None,
    store: Path,
    display: ProgressDisplay,
    *,
    repeats: int | None = None,
    force: bool = False,
) -> Kept:
    """Make a baseline of runs that are there, and measure its settings again for the noise.

    Args:
        text: see `tuner.baseline.source.find_source`.
        store: the folder of all baselines.
        repeats: how often each seed is measured again; None for what gives the noise `FREEDOM`, which is never where
            some seed has several runs, or where the device is simulated.
        force: replace a baseline of that name.

    Raises:
        UserError: a name that cannot be or is taken, runs that cannot become a baseline, or a device that is not here.
    """
    folder = require_new(store, name, replace=force)
    source = find_source(text, store)
    display.say(f"{name}: from the {source.origin.kind} {source.origin.folder}")
    for reason in source.unfit:
        display.say(f"left out: {reason}")
    rounds = _rounds_of(source) if repeats is None else repeats
    if source.only_short and not rounds:
        raise UserError(f"{source.origin.folder} has no whole run to save ({source.unfit[0]}): leave --repeats 0 out")
    session = None
    if rounds:
        # Before anything is written or replaced, and before the model is loaded.
        require_place(folder)
        # It may turn out that this is another machine.
        session = _Session(source.side.meta, source.side.seeds, _options_of(source), display)

    def make(runs: Sequence[SideRun]) -> Baseline:
        return create(folder, source.origin, runs, replace=force)

    baseline = make(source.fit) if source.fit else None
    return Kept(baseline, 0, 0, interrupted=False) if session is None else session.measure(baseline, rounds, make)


def repeat(name: str, store: Path, display: ProgressDisplay, *, repeats: int | None = None) -> Kept:
    """Measure a baseline's settings again, as a session of its own, and add the runs to it.

    Raises:
        UserError: no such baseline, a simulated one, or another device than its own.
    """
    baseline = open_baseline(store, name)
    if baseline.simulated:
        raise UserError(f"the baseline {name!r} was simulated: measured again it would give the same to the last digit")
    # What is damaged is found out before anything is measured.
    load_side(baseline.path)
    with growing(baseline):
        # Another process may have added runs by now.
        baseline = open_baseline(store, name)
        rounds = _rounds(len(baseline.seeds)) if repeats is None else repeats
        session = _Session(baseline.record, baseline.seeds, baseline.target_options, display)
        return session.measure(baseline, rounds, held=True)


def _rounds(num_seeds: int) -> int:
    """How often each seed is to be measured for `FREEDOM`; the first time of each tells nothing of the noise."""
    return 1 + ceil(FREEDOM / num_seeds)


def _rounds_of(source: Source) -> int:
    if source.side.simulated:
        return int(source.only_short)
    seen = [(run.seed, run.session) for run in source.fit]
    return 0 if len(set(seen)) < len(seen) else _rounds(len(source.side.seeds))


def _options_of(source: Source) -> TargetOptions:
    options, card = options_of(source.side.meta), source.origin.card
    return options if card is None else options_on(options, card)


class _Session:
    """One session of measuring the same settings under the same traffic, again and again.

    Args:
        meta: of a run or of a baseline: settings, workload, SLO, load, device.
        seeds: of the traffic.
        options: what loads the engine.

    Raises:
        UserError: the engine cannot be loaded here, or this is another machine.
    """

    def __init__(
        self, meta: Mapping[str, Any], seeds: Sequence[int], options: TargetOptions, display: ProgressDisplay
    ) -> None:
        self._meta, self._seeds, self._display = meta, seeds, display
        self._settings = Settings.from_dict(meta["settings"])
        self._target = BundledTarget(options, spec_from_dict(meta["workload"]), self._settings, display.say)
        if reason := other_machine(meta, self._target):
            raise UserError(
                f"what was measured on another machine cannot be measured again here: {reason}; tune baseline save "
                "--repeats 0 keeps what there is"
            )
        self._started = now()

    def measure(
        self,
        baseline: Baseline | None,
        rounds: int,
        make: Callable[[Sequence[SideRun]], Baseline] | None = None,
        *,
        held: bool = False,
    ) -> Kept:
        """Measure each seed `rounds` times and add the runs to a baseline as they come.

        Args:
            make: makes the baseline of the first run, where there is none yet.
            held: the baseline is held by this process already.

        Raises:
            UserError: the settings do not fit, or no run was of use and there is no baseline yet.
        """
        display, measured, interrupted = self._display, 0, False
        with ExitStack() as stack, display.live():
            if baseline is not None and not held:
                stack.enter_context(alone_in(baseline.path))

            def keep(result: Measured) -> None:
                nonlocal baseline, measured
                record = InMemory(result.meta, result.requests, result.iterations)
                run = SideRun(result.meta["seed"], self._started, record)
                if reason := why_unfit(run):
                    display.say(f"left out: {reason}")
                    return
                if baseline is None:
                    assert make is not None
                    baseline = make([run])
                    stack.enter_context(alone_in(baseline.path))
                else:
                    baseline = add_run(baseline, run)
                measured += 1

            try:
                for round_ in range(rounds):
                    for seed in self._seeds:
                        self._run(seed, f"repeat {round_ + 1} of {rounds}, seed {seed}", keep)
            except KeyboardInterrupt:
                interrupted = True
        if baseline is None and not interrupted:
            raise UserError("no run could be used, so there is no baseline: see above for the reasons")
        return Kept(baseline, measured, rounds * len(self._seeds), interrupted)

    def _run(self, seed: int, label: str, keep: Callable[[Measured], None]) -> None:
        load, slo = load_of(self._meta, seed), self._meta["slo"]
        measure_whole(
            *(self._target, self._settings, load, None if slo is None else parse_slo([slo])),
            label=f"{label}{at(load.rate)}",
            display=self._display,
            keep=keep,
        )
