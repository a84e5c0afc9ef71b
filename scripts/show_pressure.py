#!/usr/bin/env python
"""What scheduling does under pressure, on the real engine of this machine: four comparisons, one report each.

    preemption   a KV cache too small for what runs: recompute, swap and auto
    policies     an overload of short urgent requests beside long ones: fcfs, sjf, priority and tiered
    starvation   the same under sjf, with and without aging
    batching     more clients than seats: continuous, static and dynamic

Each is a `tune compare` that a person could type; the script prints the command, and the order of its runs is balanced
against a drift of the machine (A B C, C B A).

Usage: show_pressure.py [--only NAME ...] [--repeats 2] [--window 40s] [--out runs/pressure] [--keep docs/results]
"""

import argparse
import shlex
import shutil
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

if __package__ is None and str(Path(__file__).resolve().parent.parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine.executor.before_torch import prepare_process

prepare_process()

from engine.errors import UserError
from reports.build import MARKDOWN_FILE
from tuner.arguments import TuneArguments
from tuner.compare import run_comparison


@dataclass(frozen=True)
class Show:
    """One comparison. `why` stands at its head."""

    what: str
    why: str
    arguments: TuneArguments = field(default_factory=TuneArguments)

    def command(self, repeats: int) -> list[str]:
        """What a person would type."""
        words = ["tune", "compare", self.what]
        for name, value in asdict(self.arguments).items():
            if value == getattr(TuneArguments(), name):
                continue
            for text in value if isinstance(value, list) else [value]:
                words += [f"--{name.replace('_', '-')}", str(text)]
        return [*words, "--repeats", str(repeats)]


HOSTILE_MIX = TuneArguments(
    workload="mixed-small",
    rate="3",
    slo=["p95_ttft=5s"],
    set=["max_num_seqs=8", "max_num_batched_tokens=256"],
)
SHOWS = {
    "preemption": Show(
        "preemption_mode",
        "24 requests under way at all times, of 240 tokens each in the mean, and a KV cache for 3,600.",
        TuneArguments(
            arrival="closed:24",
            prompt_tokens="uniform:64..256",
            output_tokens="uniform:32..128",
            max_model_len=512,
            device_memory="1GiB",
            set=["max_num_batched_tokens=512", "gpu_memory_utilization=0.85", "swap_space=1GiB"],
        ),
    ),
    "policies": Show(
        "policy",
        "A little more than the engine can serve: nine short urgent requests to each long one, 8 seats.",
        replace(HOSTILE_MIX, set=[*HOSTILE_MIX.set, "aging=30s"]),
    ),
    "starvation": Show(
        "aging=off,30s",
        "The same requests under sjf: who is large waits for all who are small, for ever or for a while.",
        replace(HOSTILE_MIX, set=["policy=sjf", *HOSTILE_MIX.set]),
    ),
    "batching": Show(
        "batching",
        "32 clients and 16 seats: there is always someone waiting, so throughput is what the mode allows.",
        TuneArguments(workload="chat-small", arrival="closed:32", set=["max_num_seqs=16"]),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SHOWS, default=list(SHOWS))
    parser.add_argument("--repeats", type=int, default=2, help="runs per value")
    parser.add_argument("--window", default="40s", help="measured part of each run")
    parser.add_argument("--out", type=Path, default=Path("runs/pressure"), help="folder of the comparisons")
    parser.add_argument("--keep", type=Path, help="also put the Markdown reports there, as pressure_NAME.md")
    options = parser.parse_args()
    for name in options.only:
        show = SHOWS[name]
        show = replace(show, arguments=replace(show.arguments, window=options.window))
        command = show.command(options.repeats)
        print(f"\n{name}: {show.why}\n  {shlex.join(command)}", flush=True)
        try:
            compared = run_comparison(
                show.arguments, show.what, repeats=options.repeats, out=str(options.out / name), command=command
            )
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(f"{compared.folder}: {compared.record['option']} done", flush=True)
        if options.keep is not None:
            shutil.copyfile(compared.folder / MARKDOWN_FILE, options.keep / f"pressure_{name}.md")
        if compared.interrupted:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
