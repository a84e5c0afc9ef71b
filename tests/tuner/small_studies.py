"""Command lines of studies that take a second or two of a simulated card, and readers of what they leave."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENGINE = ("--device", "sim:l4", "--model", "random:qwen2.5-7b")
# Short answers, so that a short warm-up is enough.
LOAD = ("--workload", "chat-small", "--output-tokens", "uniform:4..16", "--window", "8s", "--warmup", "1s")
SLO = ("--slo", "p95_ttft=1s,p95_tpot=120ms")
SMALL = (*ENGINE, *LOAD, *SLO)
# Tries as many settings as it may, where the twin would have enough of them before.
TPE = ("--strategy", "tpe")
# A default with few seats, so that the search has something to find.
FEW_SEATS = ("--set", "max_num_seqs=4", "--search", "max_num_seqs=4..32")


@dataclass(frozen=True)
class Outcome:
    """What a call of the command line left: its exit code and both of its outputs."""

    code: int
    out: str
    err: str


Tune = Callable[..., Outcome]


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def study_in(folder: Path) -> dict[str, Any]:
    return read_json(folder / "study.json")


def stored_runs(folder: Path) -> dict[str, dict[str, Any]]:
    """The `run.json` of every run of a study that was not interrupted, by the name of its folder."""
    runs = {p.parent.name: read_json(p) for p in sorted((folder / "runs").glob("[0-9]*/run.json"))}
    return {name: meta for name, meta in runs.items() if meta["stopped_early"] != "interrupted"}


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def measured_twice(folder: Path) -> list[str]:
    """Runs of a study that repeat an earlier one: same settings, same load."""
    seen: set[str] = set()
    repeated = []
    for name, meta in stored_runs(folder).items():
        what = json.dumps([meta["settings"], meta["rate"], meta["seed"], meta["load"]], sort_keys=True)
        if what in seen:
            repeated.append(name)
        seen.add(what)
    return repeated
