"""One process at a time works on a study, and a process that ended holds nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import UserError
from tests.tuner.small_studies import SMALL, Outcome, Tune, files_in
from tuner.lock import alone_in

ROOT = Path(__file__).resolve().parents[2]
HOLD = "import sys; from pathlib import Path; from tuner.lock import alone_in\nwith alone_in(Path(sys.argv[1])):\n "


def holder(folder: Path) -> subprocess.Popen[str]:
    """A process that holds the folder until it is killed; it does when this returns."""
    command = [sys.executable, "-c", HOLD + "print('held', flush=True); sys.stdin.read()", str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_holder_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    with holder(tmp_path) as first:
        try:
            with pytest.raises(UserError, match="in use by another tune process"), alone_in(tmp_path):
                raise AssertionError("two hold the folder")
        finally:
            first.kill()
        first.wait()
        with alone_in(tmp_path):
            assert list(tmp_path.iterdir()) == []


def test_the_folder_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="in the middle"), alone_in(tmp_path):
        raise ValueError("in the middle")
    with alone_in(tmp_path):
        pass


def test_a_folder_that_is_not_there_is_left_to_whoever_opens_it(tmp_path: Path) -> None:
    with alone_in(tmp_path / "missing"):
        assert list(tmp_path.iterdir()) == []


def test_a_study_at_work_is_not_resumed_beside_it(tune: Tune, whole_study: tuple[Path, Outcome]) -> None:
    folder, _ = whole_study
    before = files_in(folder)
    with alone_in(folder):
        outcome = tune("--resume", str(folder), "--trials", "9")
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {str(folder)!r} is in use by another tune process")
    assert files_in(folder) == before


def test_a_new_study_holds_its_folder_while_it_runs(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals: list[str] = []

    def run(*_: object) -> None:
        try:
            with alone_in(tmp_path / "s"):
                pass
        except UserError as error:
            refusals.append(str(error))
        raise KeyboardInterrupt

    monkeypatch.setattr("tuner.search.Tuner.run", run)
    assert tune(*SMALL, "--out", "s").code == 130
    assert len(refusals) == 1
    with alone_in(tmp_path / "s"):
        pass
