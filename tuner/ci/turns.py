"""Two settings measured in turn, A B B A, pair by pair under the same traffic: what drifts meanwhile hits both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reports.diff.side import InMemory, Side, SideRun
from tuner.baseline.record import now
from tuner.compare import in_turn
from tuner.progress import ProgressDisplay
from tuner.runner import at
from tuner.settings import Settings
from tuner.targets.bundled import Load, Measured
from tuner.whole_run import Measurer, measure_whole
from workloads.slo import Slo


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of what is compared.

    Attributes:
        name: for people, such as `baseline` or `candidate`.
        target: what measures it; both sides may have the same.
        settings: those that it is measured with.
    """

    name: str
    target: Measurer
    settings: Settings


Keep = Callable[[Arm, SideRun], None]
"""Takes a run as soon as it was made."""


class BrokeOff(Exception):
    """A run ended with an error, which more runs would only repeat. It was kept.

    Attributes:
        arm: whose it was.
    """

    def __init__(self, arm: Arm, error: str) -> None:
        super().__init__(f"a run of the {arm.name} broke off: {error}")
        self.arm = arm


def measure_in_turn(
    base: Arm,
    candidate: Arm,
    loads: Sequence[Load],
    slo: Slo | None,
    *,
    display: ProgressDisplay | None = None,
    keep: Keep = lambda arm, run: None,
) -> tuple[Side, Side]:
    """Measure both settings once under each load, in the order A B B A.

    Args:
        loads: one for each pair of runs, with seeds of their own.
        keep: called with every run that went to its end, before the next begins.

    Returns:
        Base and candidate, in memory.

    Raises:
        BrokeOff: a run ended with an error.
        KVCacheTooSmall, SwapSpaceTooSmall, OutOfDeviceMemory: settings do not fit.
        KeyboardInterrupt: interrupted; what was whole by then was kept.
    """
    turns = [(arm, loads[k]) for arm, k in in_turn((base, candidate), len(loads))]
    runs = measure_runs(turns, slo, display=display, keep=keep)
    return _side(base, runs), _side(candidate, runs)


def measure_runs(
    turns: Sequence[tuple[Arm, Load]],
    slo: Slo | None,
    *,
    display: ProgressDisplay | None = None,
    keep: Keep = lambda arm, run: None,
) -> list[tuple[Arm, SideRun]]:
    """Make runs in the given order, as one session. Arguments and errors are those of `measure_in_turn`."""
    display = display or _silent()
    session = now()
    runs: list[tuple[Arm, SideRun]] = []
    for number, (arm, load) in enumerate(turns, start=1):

        def take(measured: Measured, arm: Arm = arm) -> None:
            run = SideRun(
                measured.meta["seed"], session, InMemory(measured.meta, measured.requests, measured.iterations)
            )
            runs.append((arm, run))
            keep(arm, run)
            if measured.error is not None:
                raise BrokeOff(arm, measured.error)

        label = f"{number}/{len(turns)} {arm.name}, seed {load.seed}{at(load.rate)}"
        measure_whole(arm.target, arm.settings, load, slo, label=label, display=display, keep=take)
    return runs


def _side(arm: Arm, runs: Sequence[tuple[Arm, SideRun]]) -> Side:
    own = tuple(run for owner, run in runs if owner is arm)
    return Side(arm.name, None, own[0].record.meta, own)


def _silent() -> ProgressDisplay:
    from rich.console import Console

    return ProgressDisplay(Console(quiet=True))
