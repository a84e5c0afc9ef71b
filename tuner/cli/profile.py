"""`tune profile`: a measurement of one setting with a look inside its steps."""

from engine.engine import Engine
from engine.errors import UserError
from tuner.arguments import TuneArguments
from tuner.cli.bench import measure_once
from tuner.step_profile import StepProfile
from tuner.targets.bundled import BundledTarget
from tuner.units import parse_duration_s
from workloads.driver import Progress
from workloads.records import write_atomic

TRACE_FILE = "trace.json.gz"
PROFILE_FILE = "profile.md"


def run_profile(arguments: TuneArguments, *, profile_time: str, out: str | None) -> int:
    """Measure as `tune bench` does, and write a trace and a table of the host's time beside the run.

    Returns:
        Exit code, as `tune bench`.

    Raises:
        UserError: bad input, a simulated device, several engines, or a window too short for what is to be seen in it.
    """
    from rich.console import Console

    from reports.host_profile import host_profile, profile_markdown, profile_table

    if arguments.data_parallel_size > 1:
        raise UserError(
            f"--data-parallel-size {arguments.data_parallel_size} is not possible: tune profile looks into the steps "
            "of one engine; leave it out"
        )
    length_s = parse_duration_s("--profile-time", profile_time)
    window_s = arguments.run_lengths(None).window_s
    if 2 * length_s >= window_s:
        raise UserError(
            f"--profile-time {profile_time} is not possible in a window of {window_s:g} s: it takes twice that time, "
            "once for the host's phases and once for the trace; choose a shorter time or a longer --window"
        )
    watched: list[StepProfile] = []

    def watch(target: BundledTarget, progress: Progress) -> None:
        if not watched:
            assert isinstance(target.engine, Engine)
            watched.append(StepProfile(target.engine.phases, length_s))
        watched[0].update(progress)

    once = measure_once(arguments, "tune profile", out=out, watch=watch)
    once.report(as_json=False)
    profile = None
    for steps in watched:
        steps.close()
        profile = host_profile(steps.marks, once.measured.iterations)
        if steps.write_trace(once.folder / TRACE_FILE):
            once.say(f"trace: {once.folder / TRACE_FILE} (open it in Perfetto or chrome://tracing)")
    if profile is None:
        once.say("no step of the window was seen: nothing to profile")
        return once.exit_code
    write_atomic(once.folder / PROFILE_FILE, profile_markdown(profile))
    Console().print(profile_table(profile))
    return once.exit_code
