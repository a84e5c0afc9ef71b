#!/usr/bin/env python
"""Measure the GPU path on one card: kernels, ceilings, decode, prefill, host time, throughput, and a short study.

Nothing is downloaded; all of it takes less than eight minutes. Each part runs in a process of its own and has a limit,
and the JSON is written after every part, so what was measured stays, whatever comes after it. Exit code 0 when every
part was done and every goal met, 1 when not, 2 for bad input, 130 after Ctrl-C.

Usage: gpu_check.py [--parts 1,3] [--limit-s SECONDS] [--out docs/results/gpu/CARD.json] [--dry-run]
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

if __package__ is None and str(Path(__file__).resolve().parent.parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from engine.errors import UserError
from scripts.gpu_proof.card import Card, open_card, watched
from scripts.gpu_proof.goals import correctness_goals, speed_goals
from scripts.gpu_proof.launcher import DONE, INTERRUPTED, ROOT, run_part
from scripts.gpu_proof.page import goals_table, results_table
from scripts.gpu_proof.parts import PARTS
from tuner.environment import environment
from workloads.records import write_atomic

SCHEMA_VERSION = 1
INTERRUPTED_CODE = 130
RESULTS = ROOT / "docs" / "results" / "gpu"
DRY_RESULTS = ROOT / "runs" / "gpu_check"


def chosen_parts(text: str | None) -> list[int]:
    """The parts that `--parts` names, in order; all for None.

    Raises:
        UserError: a part that does not exist.
    """
    if text is None:
        return list(PARTS)
    known = ", ".join(f"{number} ({part.title})" for number, part in PARTS.items())
    names = [name.strip() for name in text.split(",")]
    if wrong := [name for name in names if not name.isdecimal() or int(name) not in PARTS]:
        raise UserError(f"--parts {text!r} is not possible: {wrong[0]!r} is no part; give some of {known}, as in 1,3")
    return sorted({int(name) for name in names})


def result_path(out: Path | None, name: str, dry_run: bool) -> Path:
    """Where the JSON goes: a file that does not exist yet.

    Raises:
        UserError: `out` exists, or does not end in `.json`.
    """
    if out is not None:
        if out.suffix != ".json":
            raise UserError(f"--out {str(out)!r} is not possible: its name must end with .json")
        if out.exists():
            raise UserError(f"--out {str(out)!r} exists already: choose a new name")
        return out
    first = (DRY_RESULTS if dry_run else RESULTS) / f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.json"
    numbered = (first.with_stem(f"{first.stem}-{number}") for number in range(2, 1_000_000))
    return first if not first.exists() else next(path for path in numbered if not path.exists())


def find_card(dry_run: bool) -> tuple[Card | None, dict[str, Any]]:
    """The card to measure, as NVML knows it, and what it is; no values in a dry run, which has none.

    Raises:
        UserError: there is no CUDA device.
    """
    nothing = {"name": None, "driver": None}
    if dry_run:
        return None, nothing
    import torch

    if not torch.cuda.is_available():
        raise UserError(
            f"there is no GPU to measure: torch {torch.__version__} finds no CUDA device; --dry-run tries everything "
            "on the CPU, in small"
        )
    properties = torch.cuda.get_device_properties(0)
    uuid = getattr(properties, "uuid", None)
    card = open_card(None if uuid is None else str(uuid))
    facts = nothing if card is None else card.facts()
    return card, facts | {
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
    }


def measure(
    results: dict[str, Any], numbers: Sequence[int], *, card: Card | None, limit_s: float | None, out: Path
) -> None:
    """Run parts one after another until Ctrl-C, and write the file after each."""
    start = time.monotonic()
    found: dict[int, dict[str, Any]] = {}
    for number in numbers:
        part = PARTS[number]
        limit = part.limit_s if limit_s is None else limit_s
        print(f"part {number}, {part.title} (at most {limit:g} s)", flush=True)
        with watched(card) as telemetry:
            one = run_part(part, limit_s=limit, beside=out.with_suffix(""), dry_run=results["dry_run"])
        found[number] = one | {"card": telemetry}
        print(f"  {one['state']} after {one['seconds']:.0f} s", flush=True)
        speed = [] if results["dry_run"] else speed_goals(found)
        results |= {
            "parts": {str(key): value for key, value in found.items()},
            "goals": correctness_goals(found) + speed,
            "total_s": round(time.monotonic() - start, 1),
        }
        write_atomic(out, json.dumps(results, indent=1, allow_nan=False) + "\n")
        if one["state"] == INTERRUPTED:
            return


def _triton_version() -> str | None:
    try:
        return version("triton")
    except PackageNotFoundError:
        return None


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the GPU path on one card, in less than eight minutes.")
    parts = ", ".join(f"{number} {part.title}" for number, part in PARTS.items())
    parser.add_argument("--parts", help=f"some of them, such as 1,3: {parts} (default all)")
    parser.add_argument("--limit-s", type=float, help="longest that each part may take (default: each part's own)")
    parser.add_argument("--out", type=Path, help="the JSON (default docs/results/gpu/CARD.json)")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU, kernels interpreted")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    try:
        numbers = chosen_parts(options.parts)
        if options.limit_s is not None and options.limit_s <= 0:
            raise UserError(f"--limit-s {options.limit_s:g} is not possible: it is a number of seconds above 0")
        card, facts = find_card(options.dry_run)
        out = result_path(options.out, facts["name"] or "dry-run", options.dry_run)
        out.parent.mkdir(parents=True, exist_ok=True)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    results: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "gpu_check",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "dry_run": options.dry_run,
        "card": facts,
        "environment": environment() | {"triton": _triton_version()},
        "parts": {},
        "goals": [],
        "total_s": 0.0,
    }
    measure(results, numbers, card=card, limit_s=options.limit_s, out=out)
    console = Console()
    console.print(results_table(results))
    console.print(goals_table(results))
    print(f"{results['total_s']:.0f} s in all; {out}")
    return exit_code(results)


def exit_code(results: Mapping[str, Any]) -> int:
    """0 when all parts were done and all goals met, 1 when not, 130 after Ctrl-C."""
    states = {part["state"] for part in results["parts"].values()}
    if INTERRUPTED in states:
        return INTERRUPTED_CODE
    return int(states != {DONE} or not all(goal["met"] for goal in results["goals"]))


if __name__ == "__main__":
    sys.exit(main())
