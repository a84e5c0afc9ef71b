"""The folder of a comparison: held by one process, with reports however it ended, and gone when there is nothing."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UserError
from tests.tuner.small_studies import ENGINE, LOAD, Outcome, Tune, read_json
from tuner.folders import claimed_folder
from tuner.lock import alone_in
from tuner.targets.bundled import BundledTarget, Measured

COMPARE = ("compare", *ENGINE, *LOAD, "--rate", "4", "policy=fcfs,sjf,tiered")


def before_run(monkeypatch: pytest.MonkeyPatch, number: int, action: Any) -> None:
    """Call `action` in place of the measurement of a run, counted from 1."""
    measure, begun = BundledTarget.measure, []

    def watched(*args: Any, **options: Any) -> Measured:
        begun.append(True)
        return action() if len(begun) == number else measure(*args, **options)

    monkeypatch.setattr(BundledTarget, "measure", watched)


def raising(error: BaseException) -> Any:
    def action() -> None:
        raise error

    return action


def assert_reported(folder: Path, runs: int) -> None:
    assert len(read_json(folder / "comparison.json")["runs"]) == runs
    assert {"report.html", "report.md"} <= {p.name for p in folder.iterdir()}


def test_a_comparison_holds_its_folder_from_before_it_loads_the_engine(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals: list[str] = []

    def load(*_: object) -> None:
        with pytest.raises(UserError) as refusal, alone_in(tmp_path / "c"):
            pass
        refusals.append(str(refusal.value))
        raise UserError("enough seen")

    monkeypatch.setattr("tuner.compare.BundledTarget", load)
    assert tune(*COMPARE, "--out", "c").err.rstrip().endswith("enough seen")
    assert len(refusals) == 1
    assert "in use by another tune process" in refusals[0]


def test_a_folder_that_another_process_holds_is_refused_and_left_alone(tune: Tune, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    with alone_in(tmp_path / "c"):
        outcome = tune(*COMPARE, "--out", "c")
    assert outcome.code == 2
    assert "in use by another tune process" in outcome.err
    assert list((tmp_path / "c").iterdir()) == []


def test_two_comparisons_at_once_get_a_folder_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with claimed_folder(None, "today") as first, claimed_folder(None, "today") as second:
        assert first != second
        (first / "found").touch()
    assert [p.as_posix() for p in Path("runs").rglob("*")] == ["runs/today", "runs/today/found"]


@pytest.mark.parametrize("out", [None, "a/b/c"])
def test_an_empty_folder_goes_with_those_made_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    with claimed_folder(out, "today") as folder:
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_of_the_users_stays(tmp_path: Path) -> None:
    with claimed_folder(str(tmp_path), "today"):
        pass
    assert tmp_path.is_dir()


def test_a_refused_comparison_leaves_nothing_in_the_default_place(tune: Tune, tmp_path: Path) -> None:
    assert tune(*COMPARE, "--device-memory", "1GiB").code == 2
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_reports_of_the_runs_before_it(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_run(monkeypatch, 3, raising(UserError("no more of that")))
    outcome = tune(*COMPARE, "--out", "c")
    assert outcome.code == 2
    assert "no more of that" in outcome.err.splitlines()[-1]
    assert_reported(tmp_path / "c", runs=2)


def test_a_crash_leaves_reports_of_the_runs_before_it(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_run(monkeypatch, 2, raising(RuntimeError("crash")))
    with pytest.raises(RuntimeError, match="crash"):
        tune(*COMPARE, "--out", "c")
    assert_reported(tmp_path / "c", runs=1)


def interrupted(tune: Tune, monkeypatch: pytest.MonkeyPatch, run: int) -> Outcome:
    """A comparison that is told twice to stop within one run, so that it does not wait for the run's end."""

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    before_run(monkeypatch, run, twice)
    outcome = tune(*COMPARE, "--out", "c")
    assert outcome.code == 130, outcome.err
    return outcome


def test_a_second_interrupt_leaves_reports_of_the_runs_before_it(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(tune, monkeypatch, run=2)
    assert_reported(tmp_path / "c", runs=1)


def test_a_second_interrupt_in_the_first_run_leaves_no_folder(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = interrupted(tune, monkeypatch, run=1)
    assert outcome.err.rstrip().endswith("interrupted before the first run was whole")
    assert list(tmp_path.iterdir()) == []
