"""`tune bench`: one setting, measured once."""

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.errors import UserError
from tuner.arguments import TuneArguments
from tuner.cli.output import INTERRUPTED_CODE, print_json, print_summary
from tuner.folders import new_folder, require_writable
from tuner.interrupt import deferred_interrupts
from tuner.notices import chosen_settings
from tuner.progress import ProgressDisplay
from tuner.targets.bundled import BundledTarget, Measured
from workloads.driver import Progress
from workloads.early_stop import INTERRUPTED

Watch = Callable[[BundledTarget, Progress], None]
"""Told how a run goes, between two of its steps."""


@dataclass(frozen=True)
class MeasuredOnce:
    """One measurement, stored with its reports.

    Attributes:
        folder: of the run.
        measured: what was found.
        files: its reports.
        say: prints a line for people.
    """

    folder: Path
    measured: Measured
    files: list[Path]
    say: Callable[[str], None]

    @property
    def exit_code(self) -> int:
        """0, also when the SLO was missed: the measurement is the result. 1 when the run broke off, 130 when it was
        interrupted."""
        if self.measured.error:
            return 1
        return INTERRUPTED_CODE if self.measured.meta["stopped_early"] == INTERRUPTED else 0

    def report(self, *, as_json: bool) -> None:
        """Print what was found."""
        if as_json:
            print_json(self.measured.meta | {"folder": str(self.folder), "report": str(self.files[0])})
        else:
            print_summary(self.folder)
        if self.measured.error:
            self.say(f"the run broke off: {self.measured.error}; what it had measured is in {self.folder}")


def run_bench(arguments: TuneArguments, *, out: str | None, as_json: bool) -> int:
    """Measure and write the run's folder with its reports.

    Returns:
        Exit code, see `MeasuredOnce`; what was measured is stored in each case.

    Raises:
        UserError: bad input.
    """
    once = measure_once(arguments, "tune bench", out=out)
    once.report(as_json=as_json)
    return once.exit_code


def measure_once(
    arguments: TuneArguments, command: str, *, out: str | None, watch: Watch | None = None
) -> MeasuredOnce:
    """Measure the setting of a command line at its rate, and store the run.

    Args:
        command: `tune bench`, or one like it.
        watch: told how the run goes; then the device must be a real one.

    Raises:
        UserError: bad input.
    """
    from rich.console import Console

    from reports.build import write_reports
    from workloads.records import write_run

    display = ProgressDisplay(Console(stderr=True))
    slo, spec = arguments.parse_slo(), arguments.load_workload()
    settings = chosen_settings(arguments.set, display.say)
    rate = arguments.one_rate(spec, command)
    load = arguments.run_lengths(None).load(rate, arguments.seed)
    folder = new_folder(out, f"{datetime.date.today():%Y-%m-%d}-{command.split()[-1]}-{spec.name}")
    require_writable(folder)
    target = BundledTarget(arguments.target_options(), spec, settings, display.say)
    if watch is not None and target.simulated:
        raise UserError(f"{command} needs a real device: on {target.executor.device_name} no step is carried out")
    simulated = " (simulated)" if target.simulated else ""
    display.say(f"{target.source.name} on {target.executor.device_name}{simulated}, workload {spec.name}")
    with display.live(), deferred_interrupts() as interrupted:
        update = display.run_started(command.split()[-1])

        def on_progress(progress: Progress) -> None:
            update(progress)
            if watch is not None:
                watch(target, progress)

        measured = target.measure(
            settings, load, slo, stop_when_settled=False, on_progress=on_progress, should_stop=interrupted
        )
        if folder.exists():
            folder.rmdir()
        write_run(folder, measured.meta, measured.requests, measured.iterations)
    return MeasuredOnce(folder, measured, write_reports(folder), display.say)
