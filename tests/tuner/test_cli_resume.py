"""A study that was interrupted, killed or damaged goes on from what is stored, and measures nothing twice."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.small_studies import (
    FEW_SEATS,
    SMALL,
    TPE,
    Outcome,
    Tune,
    files_in,
    measured_twice,
    stored_runs,
    study_in,
)
from tuner.targets.bundled import BundledTarget, Measured

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 120


def interrupted_study(folder: Path, how: signal.Signals) -> int:
    """Start the study of `whole_study` in a process of its own and signal it after two runs; its exit status."""
    command = [sys.executable, "-c", "from tuner.cli.main import main; main()"]
    process = subprocess.Popen(
        [*command, *SMALL, *FEW_SEATS, *TPE, "--trials", "2", "--seed", "1", "--out", str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "7"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while len(stored_runs(folder)) < 2 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(how)
        _, errors = process.communicate(timeout=START_LIMIT_S)
    finally:
        process.kill()
    assert "Traceback" not in errors
    return process.returncode


@pytest.mark.usefixtures("no_reports")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=lambda s: s.name)
def test_an_interrupted_study_goes_on_and_measures_nothing_twice(
    tune: Tune, tmp_path: Path, whole_study: tuple[Path, Outcome], how: signal.Signals
) -> None:
    folder, (whole, _) = tmp_path / "s", whole_study
    status = interrupted_study(folder, how)
    before, files = study_in(folder), files_in(folder / "runs")
    if how is signal.SIGKILL:
        assert (status, before["state"]) == (-signal.SIGKILL, "running")
    else:
        assert (status, before["state"]) == (130, "interrupted")
        assert (folder / "report.html").is_file()
        assert (folder / "report.md").is_file()
    stored = stored_runs(folder)
    assert 2 <= len(stored) < len(stored_runs(whole))

    outcome = tune("--resume", str(folder))
    assert outcome.code == 0, outcome.err
    after, later_files = study_in(folder), files_in(folder / "runs")
    assert after["state"] == "complete"
    assert after["elapsed_s"] > before["elapsed_s"]
    assert after["confirmation"]["verdict"] == "better"
    assert {name: later_files[name] for name in files} == files
    assert measured_twice(folder) == []
    assert [t["number"] for t in after["trials"]] == [0, 1, 2]
    used = {run["path"] for trial in after["trials"] for run in trial["runs"]}
    assert used <= {f"runs/{name}" for name in stored_runs(folder)}, "an interrupted run was taken for a whole one"
    # The clock is virtual: the process that was interrupted measured exactly what an undisturbed one does.
    tables = {f"{name}/{table}.parquet" for name in stored for table in ("requests", "iterations")}
    undisturbed = files_in(whole / "runs")
    assert {name: later_files[name] for name in tables} == {name: undisturbed[name] for name in tables}


def test_a_terminated_study_is_stored_like_an_interrupted_one(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = BundledTarget.measure

    def measure_then_terminate(*args: Any, **options: Any) -> Measured:
        measured = measure(*args, **options)
        os.kill(os.getpid(), signal.SIGTERM)
        return measured

    monkeypatch.setattr(BundledTarget, "measure", measure_then_terminate)
    outcome = tune(*SMALL, "--rate", "4", "--trials", "1", "--out", "s")
    assert outcome.code == 130
    assert "--resume" in outcome.err
    assert study_in(tmp_path / "s")["state"] == "interrupted"
    assert (tmp_path / "s" / "report.md").is_file()


@pytest.fixture
def copy_of_study(tmp_path: Path, whole_study: tuple[Path, Outcome]) -> Path:
    return Path(shutil.copytree(whole_study[0], tmp_path / "copy"))


def test_a_complete_study_is_not_resumed_without_more_to_do(tune: Tune, copy_of_study: Path) -> None:
    before = files_in(copy_of_study)
    outcome = tune("--resume", str(copy_of_study))
    assert outcome.code == 2
    assert "complete" in outcome.err
    assert "Traceback" not in outcome.err
    assert files_in(copy_of_study) == before


def test_resume_takes_no_option_that_would_change_what_is_measured(tune: Tune, copy_of_study: Path) -> None:
    before = files_in(copy_of_study)
    for option in (["--slo", "p95_ttft=2s"], ["--rate", "4"], ["--seed", "3"], ["--set", "max_num_seqs=8"]):
        outcome = tune("--resume", str(copy_of_study), *option)
        assert outcome.code == 2
        assert "--resume takes the study's own options" in outcome.err
    assert files_in(copy_of_study) == before


@pytest.mark.usefixtures("no_reports")
def test_more_trials_let_a_complete_study_go_on(tune: Tune, copy_of_study: Path) -> None:
    before, files = study_in(copy_of_study), files_in(copy_of_study / "runs")
    outcome = tune("--resume", str(copy_of_study), "--trials", "3")
    assert outcome.code == 0, outcome.err
    after, later_files = study_in(copy_of_study), files_in(copy_of_study / "runs")
    for trial in before["trials"] + after["trials"]:
        del trial["elapsed_s"]
    assert after["trials"][:3] == before["trials"]
    assert [t["number"] for t in after["trials"]] == [0, 1, 2, 3]
    assert {name: later_files[name] for name in files} == files
    assert len(later_files) > len(files)
    assert measured_twice(copy_of_study) == []


@pytest.mark.usefixtures("no_reports")
def test_a_damaged_database_is_named_and_removing_it_lets_the_study_go_on(tune: Tune, copy_of_study: Path) -> None:
    files = files_in(copy_of_study / "runs")
    (copy_of_study / "study.db").write_bytes(b"nothing that SQLite would read")
    outcome = tune("--resume", str(copy_of_study), "--trials", "2")
    assert outcome.code == 2
    assert "study.db is damaged" in outcome.err
    assert "Traceback" not in outcome.err
    (copy_of_study / "study.db").unlink()
    outcome = tune("--resume", str(copy_of_study), "--trials", "2")
    assert outcome.code == 0, outcome.err
    assert files_in(copy_of_study / "runs") == files
    assert study_in(copy_of_study)["state"] == "complete"
    assert [t["number"] for t in study_in(copy_of_study)["trials"]] == [0, 1, 2]


def test_a_damaged_run_is_named_when_the_study_is_resumed(tune: Tune, copy_of_study: Path) -> None:
    name = next(iter(stored_runs(copy_of_study)))
    (copy_of_study / "runs" / name / "run.json").write_text("{")
    outcome = tune("--resume", str(copy_of_study), "--trials", "3")
    assert outcome.code == 2
    assert name in outcome.err
    assert "Traceback" not in outcome.err
