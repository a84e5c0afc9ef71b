#!/usr/bin/env python
"""Whether the search does what it claims, on made-up devices whose truth is known.

    regret     how far from the best settings each strategy is, at equal time on the device, thinking included
    verdicts   how often a verdict is false, and how many requests it needs
    crashes    what strategies do where much of the space fails
    claims     the claimed gain against what is truly gained
    front      how much of the front of two objectives each strategy has found after how many settings
    real       the CPU engine: a small grid measured whole, and the strategies on it

Without a part, all of them. What is finished is kept in the folder of --out, and a further call goes on from there;
remove its *.jsonl when a strategy has changed, truth-*.json and cpu_grid too when the engine has. Writes Markdown and
JSON beside that folder. Exit code 1 when a goal is missed.

Usage: bench_search.py [PART ...] [--seeds 30] [--jobs 2] [--quick] [--out docs/results/search]
"""

import argparse
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

if __package__ is None and str(Path(__file__).resolve().parent.parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine.executor.before_torch import prepare_process

prepare_process()

from rich.console import Console

from scripts.search_proof.pool import say_on
from workloads.records import write_atomic

PARTS = {
    "regret": "scripts.search_proof.regret",
    "verdicts": "scripts.search_proof.verdicts",
    "crashes": "scripts.search_proof.crashes",
    "claims": "scripts.search_proof.claims",
    "front": "scripts.search_proof.front",
    "real": "scripts.search_proof.real_grid",
}
"""Name to module, each with `run(*, quick, say, ...) -> dict` and `to_markdown(result) -> str`."""

DEFAULT_OUT = Path("docs/results/search")


def run_part(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Run a part with those of the options that it knows."""
    part = import_module(PARTS[name])
    known = inspect.signature(part.run).parameters
    return part.run(**{key: value for key, value in options.items() if key in known})


def markdown(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page of all parts."""
    lines = [
        "# Search: what was proven and what was not",
        "",
        "Made by `scripts/bench_search.py`; the same command makes it again. But for the last part everything here is "
        "*simulated*: the study is the product's own loop, the device is made up, and its step times follow a law of "
        "their own, not the one that the twin learns.",
        "",
    ]
    goals = [goal for result in results.values() for goal in result.get("goals", [])]
    rows = [f"| {goal['text']} | {goal['found']} | {'met' if goal['met'] else '**missed**'} |" for goal in goals]
    lines += ["| goal | found | |", "| --- | --- | --- |", *rows, ""]
    lines += [import_module(PARTS[name]).to_markdown(result) for name, result in results.items()]
    return "\n".join(lines)


def write_results(out: Path, results: Mapping[str, Any]) -> None:
    """Write `OUT.json` and `OUT.md`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out.with_suffix(".json"), json.dumps(results, indent=1) + "\n")
    write_atomic(out.with_suffix(".md"), markdown(results).rstrip() + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all without one")
    parser.add_argument("--seeds", type=int, default=30, help="studies per pair and strategy")
    parser.add_argument("--gp-seeds", type=int, default=5, help="those of gp, which thinks for long")
    parser.add_argument("--jobs", type=int, default=2, help="processes to work in")
    parser.add_argument("--quick", action="store_true", help="whether it works, in two minutes; proves nothing")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder, and name of the .md and .json beside it")
    options = parser.parse_args(arguments)
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}: choose of {', '.join(PARTS)}")
    for name in ("seeds", "gp_seeds", "jobs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)} is not possible: at least 1")
    console = Console(stderr=True)
    given = {
        "quick": options.quick,
        "say": say_on(console),
        "folder": options.out,
        "processes": options.jobs,
        "seeds": options.seeds,
        "gp_seeds": options.gp_seeds,
    }
    kept = options.out.with_suffix(".json")
    results = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    chosen = options.parts or list(PARTS)
    for name in chosen:
        results[name] = run_part(name, given)
        # Each part is worth keeping without those that follow.
        write_results(options.out, {part: results[part] for part in PARTS if part in results})
    goals = [goal for name in chosen for goal in results[name].get("goals", [])]
    for goal in goals:
        print(f"{'met   ' if goal['met'] else 'MISSED'}  {goal['text']}: {goal['found']}")
    return int(not all(goal["met"] for goal in goals))


if __name__ == "__main__":
    sys.exit(main())
