#!/usr/bin/env python
"""How fast runs are simulated: the whole engine above a model of step times, one process on one core.

Times `BundledTarget.measure`, as a search on a simulated device calls it: laying out the load, every step of the real
scheduler, and the summary with its checks. Steps per second are those of the process's own time on the core, so that
another's work beside it counts less; the wall time is that of the clock. Exit code 1 when the median of a case misses
its goal.

Usage: bench_simulation.py [--repeats 5] [--json FILE]
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

if __package__ is None and str(Path(__file__).resolve().parent.parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine.host import cpu_name
from tuner.settings import Settings
from tuner.targets.bundled import BundledTarget, Load, TargetOptions
from workloads.slo import parse_slo
from workloads.spec import load_spec

MODEL, DEVICE = "random:qwen2.5-7b", "sim:a100-80g"
SLO = parse_slo("p95_ttft=2s,p95_tpot=100ms")


@dataclass(frozen=True)
class Case:
    """A load and what is asked of its simulation.

    Attributes:
        overrides: of the preset `chat`.
        least_steps_per_s, most_wall_s: the goals; None for none.
    """

    name: str
    load: Load
    overrides: tuple[str, ...] = ()
    least_steps_per_s: float | None = None
    most_wall_s: float | None = None


CASES = (
    # Outputs that outlast the run: a server's steady state, as in bench_scheduler.py.
    Case(
        "64 requests that decode",
        Load(rate=None, seed=0, warmup_s=10.0, window_s=60.0),
        ("arrival=closed:64", "prompt_tokens=uniform:500..600", "output_tokens=fixed:7000"),
        least_steps_per_s=5000,
    ),
    Case(
        "chat, always 64 under way",
        Load(rate=None, seed=0, warmup_s=10.0, window_s=60.0),
        ("arrival=closed:64",),
    ),
    Case("one minute of chat, 4 requests/s", Load(rate=4.0, seed=0, warmup_s=10.0, window_s=60.0), most_wall_s=1.5),
)


@dataclass(frozen=True)
class Timing:
    """What a case took.

    Attributes:
        requests, steps, mean_running: of one repeat; all of them are alike.
        wall_s, core_s: of each repeat, by the clock and on the core.
    """

    requests: int
    steps: int
    mean_running: float
    wall_s: tuple[float, ...]
    core_s: tuple[float, ...]

    @property
    def steps_per_s(self) -> float:
        """In the median repeat, of its time on the core."""
        return self.steps / median(self.core_s)

    def meets(self, case: Case) -> bool:
        """Whether the median repeat keeps to the goals."""
        is_fast = case.least_steps_per_s is None or self.steps_per_s >= case.least_steps_per_s
        return is_fast and (case.most_wall_s is None or median(self.wall_s) <= case.most_wall_s)


def measure(case: Case, repeats: int) -> Timing:
    """Simulate a load several times, after once to load what is loaded at first use.

    Raises:
        RuntimeError: two repeats differ.
    """
    settings = Settings()
    target = BundledTarget(TargetOptions(model=MODEL, device=DEVICE), load_spec("chat", case.overrides), settings)
    first = target.measure(settings, case.load, SLO, stop_when_settled=False)
    walls, cores = [], []
    for _ in range(repeats):
        begin, core_begin = time.perf_counter(), time.process_time()
        measured = target.measure(settings, case.load, SLO, stop_when_settled=False)
        walls.append(time.perf_counter() - begin)
        cores.append(time.process_time() - core_begin)
        if (measured.requests, measured.iterations) != (first.requests, first.iterations):
            raise RuntimeError(f"{case.name}: the same run came out differently")
    steps = len(first.iterations)
    running = sum(s.running for s in first.iterations) / steps
    return Timing(len(first.requests), steps, running, tuple(walls), tuple(cores))


def describe(case: Case, timing: Timing) -> str:
    """One line for people."""
    goals = []
    if case.least_steps_per_s is not None:
        goals.append(f"{case.least_steps_per_s:,.0f} steps/s")
    if case.most_wall_s is not None:
        goals.append(f"{case.most_wall_s:g} s")
    verdict = f"{'meets' if timing.meets(case) else 'MISSES'} {', '.join(goals)}" if goals else ""
    load = f"{timing.requests:>8} {timing.steps:>6} {timing.mean_running:>7.1f}"
    seconds = f"{_median_and_spread(timing.wall_s)} {_median_and_spread(timing.core_s)}"
    return f"{case.name:<34} {load}  {seconds} {timing.steps_per_s:>8,.0f}  {verdict}"


def _median_and_spread(seconds: Sequence[float]) -> str:
    return f"{median(seconds):>6.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="measured repeats per case")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats} is not possible: at least 1")
    print(f"{cpu_name()}, Python {platform.python_version()}; {MODEL} on {DEVICE}, simulated")
    print(f"{'median of ' + str(options.repeats):<34} requests  steps running  {'wall s':<21} {'core s':<21}  steps/s")
    rows, all_met = [], True
    for case in CASES:
        timing = measure(case, options.repeats)
        all_met = all_met and timing.meets(case)
        rows.append({**asdict(case), **asdict(timing), "steps_per_s": timing.steps_per_s, "meets": timing.meets(case)})
        print(describe(case, timing), flush=True)
    if options.json:
        record = {"cpu": cpu_name(), "python": platform.python_version(), "cases": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(not all_met)


if __name__ == "__main__":
    sys.exit(main())
