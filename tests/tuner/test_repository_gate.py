"""The repository's own gate: the scheduler does what it did, step by step; a change of it is found and named."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.config import SchedulerConfig
from engine.request import Request
from engine.scheduler.preemption import VictimChoice
from engine.scheduler.waiting_queue import WaitingQueue
from tests.tuner.small_studies import Tune
from tuner.baseline.store import names_in

ROOT = Path(__file__).resolve().parents[2]
STORE = ROOT / ".ci" / "baselines"
NAMES = names_in(STORE)
# A baseline lies in the repository, and each of its changes stays in the history.
MOST_BYTES = 80_000


def gate(name: str, out: Path) -> list[str]:
    return ["ci", "--baseline", name, "--store", str(STORE), "--exact", "--out", str(out)]


def moved_in(out: Path) -> dict[str, Any]:
    (moved,) = json.loads((out / "diff.json").read_text())["moved"]
    return moved


def test_there_are_three_baselines_and_each_is_small() -> None:
    assert NAMES == ["chat", "long-prompts", "pressure"]
    for name in NAMES:
        assert sum(file.stat().st_size for file in (STORE / name).rglob("*") if file.is_file()) <= MOST_BYTES


def test_most_of_the_scheduler_acts_under_pressure() -> None:
    (run,) = (STORE / "pressure" / "runs").glob("*/run.json")
    summary = json.loads(run.read_text())["summary"]
    acting = (
        "preemptions_swap",
        "preemptions_recompute",
        "cached_tokens",
        "num_turned_away",
        "num_retries",
        "num_shed",
    )
    assert {name for name in acting if not summary[name]} == set()


@pytest.mark.parametrize(("name", "hash_seed"), [(name, str(7 * i + 1)) for i, name in enumerate(NAMES)])
def test_this_tree_passes_whatever_the_process_and_its_hash_seed(name: str, hash_seed: str, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tuner.cli.main", *gate(name, tmp_path / "out")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    moved = moved_in(tmp_path / "out")
    assert (moved["steps"], moved["requests"], moved["counters"]) == (0, 0, [])


def newest_first(self: WaitingQueue, request: Request, remaining_tokens: int) -> float:
    return -request.sequence_number


@pytest.mark.parametrize("name", NAMES)
def test_another_order_of_the_queue_fails_and_the_diff_names_where_it_began(
    name: str, tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WaitingQueue, "_key", newest_first)
    outcome = tune(*gate(name, tmp_path / "out"))
    assert outcome.code == 1, outcome.err
    moved = moved_in(tmp_path / "out")
    assert moved["first_request"]["reordered"]
    first = moved["first_step"]
    columns = {change["name"] for change in first["changes"]}
    assert {"prefill_tokens", "context_tokens", "cached_tokens"} & columns
    said = " ".join((tmp_path / "out" / "diff.md").read_text().split())
    assert f"first number {first['number']}: " in said
    assert any(f"{name} " in said.partition("first number")[2] for name in columns)


def first_admitted(config: SchedulerConfig) -> VictimChoice:
    def choose(running: Sequence[Request]) -> Request:
        return running[0]

    return choose


def test_another_victim_of_preemption_fails_and_the_diff_names_what_moved(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.scheduler.preemption.victim_choice", first_admitted)
    outcome = tune(*gate("pressure", tmp_path / "out"))
    assert outcome.code == 1, outcome.err
    moved = moved_in(tmp_path / "out")
    assert moved["first_step"]["changes"]
    assert {"preemptions", "cached tokens"} & {change["name"] for change in moved["counters"]}
    assert "Regression" in (tmp_path / "out" / "diff.md").read_text()


@pytest.mark.parametrize(
    ("codes", "expected"), [((0, 0, 0), 0), ((0, 1, 0), 1), ((1, 2, 0), 2), ((2, 1, 1), 2), ((130, 0, 0), 130)]
)
def test_the_script_hands_on_what_went_wrong_and_says_where_the_report_is(
    codes: Sequence[int], expected: int, tmp_path: Path
) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "gate", tmp_path / "scripts" / "gate")
    for name, code in zip(NAMES, codes, strict=True):
        (tmp_path / ".ci" / "baselines" / name).mkdir(parents=True)
        (tmp_path / ".ci" / "baselines" / name / "code").write_text(str(code))
    stand_in = tmp_path / "scripts" / "tune"
    # Arguments: ci --baseline NAME --store STORE --exact --out FOLDER
    stand_in.write_text('#!/bin/sh\nmkdir -p "$8"; touch "$8/diff.md"; exit "$(cat "$5/$3/code")"\n')
    stand_in.chmod(0o755)
    done = subprocess.run([tmp_path / "scripts" / "gate"], capture_output=True, text=True, check=False)
    assert done.returncode == expected, done.stderr
    if codes[0]:
        assert "gate: chat ended with" in done.stderr
        assert "the report is runs/gate/chat/diff.md" in done.stderr
