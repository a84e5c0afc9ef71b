"""`--warm-start` from the command line to the record and the report, and on when the study is resumed."""

import shutil
from pathlib import Path

import pytest

from tests.tuner.small_studies import FEW_SEATS, SMALL, TPE, Outcome, Tune, measured_twice, study_in

START = (*SMALL, *FEW_SEATS, *TPE, "--seed", "3", "--rate", "6")


@pytest.fixture
def earlier(tmp_path: Path, whole_study: tuple[Path, Outcome]) -> Path:
    """A finished study in the local store."""
    return Path(shutil.copytree(whole_study[0], tmp_path / "runs" / "earlier"))


def best_of(folder: Path) -> dict[str, object]:
    study = study_in(folder)
    return study["trials"][study["best"]["trial"]]["settings"]


def test_a_new_study_begins_with_what_was_best_in_the_local_store_and_says_so(tune: Tune, earlier: Path) -> None:
    outcome = tune(*START, "--trials", "1", "--out", "runs/new")
    assert outcome.code == 0, outcome.err
    assert "warm start from 1 earlier study: " in outcome.err
    study = study_in(earlier.parent / "new")
    assert study["warm_start"]["studies"] == ["earlier"]
    assert study["warm_start"]["tries"] >= 1
    assert study["trials"][1]["settings"] == best_of(earlier)
    report = (earlier.parent / "new" / "report.md").read_text()
    assert "A warm start from 1 earlier study: " in report


@pytest.mark.usefixtures("no_reports")
def test_off_begins_without(tune: Tune, earlier: Path) -> None:
    outcome = tune(*START, "--trials", "1", "--warm-start", "off", "--out", "runs/new")
    assert outcome.code == 0, outcome.err
    assert "warm start" not in outcome.err
    assert study_in(earlier.parent / "new")["warm_start"]["studies"] == []


@pytest.mark.usefixtures("no_reports")
def test_a_resumed_study_does_not_look_again(tune: Tune, earlier: Path, tmp_path: Path) -> None:
    assert tune(*START, "--trials", "1", "--warm-start", str(earlier), "--out", "new").code == 0
    before = study_in(tmp_path / "new")
    shutil.copytree(earlier, tmp_path / "later")
    shutil.rmtree(earlier)
    outcome = tune("--resume", "new", "--trials", "2")
    assert outcome.code == 0, outcome.err
    after = study_in(tmp_path / "new")
    assert after["warm_start"] == before["warm_start"]
    settings = [trial["settings"] for trial in after["trials"]]
    assert len(settings) == 3
    assert all(a != b for i, a in enumerate(settings) for b in settings[:i])
    assert measured_twice(tmp_path / "new") == []


def test_resume_takes_no_other_warm_start(tune: Tune, earlier: Path) -> None:
    outcome = tune("--resume", str(earlier), "--trials", "5", "--warm-start", "off")
    assert outcome.code == 2
    assert "--resume takes the study's own options" in outcome.err


def test_a_study_of_another_device_is_refused_before_anything_is_made(
    tune: Tune, earlier: Path, tmp_path: Path
) -> None:
    outcome = tune(*START, "--device", "sim:h100", "--warm-start", str(earlier), "--out", "new")
    assert outcome.code == 2
    assert "earlier: its device has name" in outcome.err
    assert not (tmp_path / "new").exists()


def test_a_folder_that_is_none_is_refused(tune: Tune, tmp_path: Path) -> None:
    outcome = tune(*START, "--warm-start", "nowhere", "--out", "new")
    assert outcome.code == 2
    assert "there is no study.json" in outcome.err
    assert not (tmp_path / "new").exists()
