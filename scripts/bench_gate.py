#!/usr/bin/env python
"""Whether the gate cries wolf, and what it finds: A/A comparisons and slowdowns of known size on noisy machines.

Trials are made as `tune ci` and `tune diff` make them, with their defaults, on two simulated machines that are noisy
and on the real CPU engine. What is finished is kept in the folder of --out, and a further call goes on from there;
remove its trials.jsonl when the gate or the engine has changed. Writes Markdown and JSON beside that folder. Exit code
1 when a goal is missed.

Usage: bench_gate.py [--repeats 200] [--real-repeats 6] [--jobs 1] [--quick] [--out docs/results/gate]
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ is None and str(Path(__file__).resolve().parent.parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine.executor.before_torch import prepare_process

prepare_process()

from rich.console import Console

from scripts.gate_proof.figures import figures, goals_of
from scripts.gate_proof.page import to_markdown, to_terminal
from scripts.gate_proof.plan import groups
from scripts.gate_proof.real import REAL
from scripts.gate_proof.trials import GOALS_ON, Trial, play
from scripts.search_proof.pool import Ledger, each
from workloads.records import write_atomic

DEFAULT_OUT = Path("docs/results/gate")
LEDGER = "trials.jsonl"
QUICK_REPEATS = 4


def judgements(trials: Sequence[Trial], ledger: Ledger, jobs: int) -> list[Mapping[str, Any]]:
    """What came of each trial; those that the ledger lacks are made."""
    # The real engine is measured alone: what else the machine does would be its noise.
    for title, real in (("simulated machines", False), ("real engine", True)):
        todo = [trial for trial in trials if trial.key not in ledger and (trial.machine == REAL) is real]
        if todo:
            for trial, found in each(play, todo, 1 if real else jobs, title):
                ledger.add(trial.key, found)
    return [ledger[trial.key] for trial in trials]


def results_of(trials: Sequence[Trial], found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`{figures: {what judged: {machine: {change: figures}}}, goals}`."""
    grouped: dict[str, dict[str, dict[str, list[Any]]]] = {}
    for trial, by_judge in zip(trials, found, strict=True):
        for judge, judgement in by_judge.items():
            by_change = grouped.setdefault(judge, {}).setdefault(trial.machine, {})
            by_change.setdefault(trial.change, []).append(judgement)
    counted = {
        judge: {
            machine: {change: figures(all_) for change, all_ in by_change.items()}
            for machine, by_change in machines.items()
        }
        for judge, machines in grouped.items()
    }
    goals = [
        goal
        for judge in GOALS_ON
        for machine, by_change in counted.get(judge, {}).items()
        for goal in goals_of(f"{judge}, {machine}", by_change)
    ]
    return {"figures": counted, "goals": goals}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200, help="trials of A/A and of 10 % more on each machine")
    parser.add_argument("--real-repeats", type=int, default=6, help="likewise on the real engine; 0 for none")
    parser.add_argument("--jobs", type=int, default=1, help="processes for the simulated machines")
    parser.add_argument("--quick", action="store_true", help="whether it works; proves nothing")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder, and name of the .md and .json beside it")
    options = parser.parse_args(arguments)
    for name, least in (("repeats", 1), ("real_repeats", 0), ("jobs", 1)):
        if (value := getattr(options, name)) < least:
            parser.error(f"--{name.replace('_', '-')} {value} is not possible: at least {least}")
    repeats = min(QUICK_REPEATS, options.repeats) if options.quick else options.repeats
    real_repeats = 0 if options.quick else options.real_repeats
    trials = [trial for group in groups(repeats, real_repeats) for trial in group.trials()]
    results = results_of(trials, judgements(trials, Ledger(options.out / LEDGER), options.jobs))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(options.out.with_suffix(".json"), json.dumps(results, indent=1) + "\n")
    write_atomic(options.out.with_suffix(".md"), to_markdown(results).rstrip() + "\n")
    Console().print(to_terminal(results))
    for goal in results["goals"]:
        print(f"{'met   ' if goal['met'] else 'MISSED'}  {goal['text']}: {goal['found']}")
    return int(not all(goal["met"] for goal in results["goals"]))


if __name__ == "__main__":
    sys.exit(main())
