"""`tune bench`: one setting, measured once."""

import datetime

from tuner.arguments import TuneArguments
from tuner.cli.output import INTERRUPTED_CODE, print_json, print_summary
from tuner.folders import new_folder, require_writable
from tuner.interrupt import deferred_interrupts
from tuner.notices import chosen_settings
from tuner.progress import ProgressDisplay
from tuner.targets.bundled import BundledTarget
from workloads.early_stop import INTERRUPTED


def run_bench(arguments: TuneArguments, *, out: str | None, as_json: bool) -> int:
    """Measure and write the run's folder with its reports.

    Returns:
        Exit code 0, also when the SLO was missed: the measurement is the result. 1 when the run broke off,
        130 when it was interrupted; what was measured is stored in each case.

    Raises:
        UserError: bad input.
    """
    from rich.console import Console

    from reports.build import write_reports
    from workloads.records import write_run

    display = ProgressDisplay(Console(stderr=True))
    slo, spec = arguments.parse_slo(), arguments.load_workload()
    settings = chosen_settings(arguments.set, display.say)
    rate = arguments.one_rate(spec, "tune bench")
    load = arguments.run_lengths(None).load(rate, arguments.seed)
    folder = new_folder(out, f"{datetime.date.today():%Y-%m-%d}-bench-{spec.name}")
    require_writable(folder)
    target = BundledTarget(arguments.target_options(), spec, settings, display.say)
    simulated = " (simulated)" if target.simulated else ""
    display.say(f"{target.source.name} on {target.executor.device_name}{simulated}, workload {spec.name}")
    with display.live(), deferred_interrupts() as interrupted:
        update = display.run_started("bench")
        measured = target.measure(
            settings, load, slo, stop_when_settled=False, on_progress=update, should_stop=interrupted
        )
        if folder.exists():
            folder.rmdir()
        write_run(folder, measured.meta, measured.requests, measured.iterations)
    files = write_reports(folder)
    if as_json:
        print_json(measured.meta | {"folder": str(folder), "report": str(files[0])})
    else:
        print_summary(folder)
    if measured.error:
        display.say(f"the run broke off: {measured.error}; what it had measured is in {folder}")
        return 1
    return INTERRUPTED_CODE if measured.meta["stopped_early"] == INTERRUPTED else 0
