"""`--strategy` from the command line to the report, and on when the study is resumed."""

import re
from pathlib import Path

import pytest

from tests.tuner.small_studies import FEW_SEATS, SMALL, Tune, measured_twice, study_in

NAMES = ("tpe", "gp", "cmaes", "nsga2", "qmc", "random", "grid", "staged")
START = (*SMALL, *FEW_SEATS, "--rate", "4", "--seed", "1")


@pytest.mark.usefixtures("no_reports")
@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_runs_a_study_and_goes_on_when_it_is_resumed(tune: Tune, tmp_path: Path, name: str) -> None:
    if name == "cmaes":
        pytest.importorskip("cmaes")
    outcome = tune(*START, "--strategy", name, "--trials", "2", "--out", "s")
    assert outcome.code == 0, outcome.err
    before = study_in(tmp_path / "s")
    assert before["options"]["strategy"] == name
    assert before["options"]["arguments"]["strategy"] == name
    assert [t["kind"] for t in before["trials"]] == ["baseline", "search", "search"]

    outcome = tune("--resume", str(tmp_path / "s"), "--trials", "3")
    assert outcome.code == 0, outcome.err
    after = study_in(tmp_path / "s")
    assert after["options"]["strategy"] == name
    assert [t["number"] for t in after["trials"]] == [0, 1, 2, 3]
    settings = [t["settings"] for t in after["trials"]]
    assert all(a != b for i, a in enumerate(settings) for b in settings[:i])
    assert measured_twice(tmp_path / "s") == []


def test_the_report_names_the_strategy(tune: Tune, tmp_path: Path) -> None:
    assert tune(*START, "--strategy", "random", "--trials", "1", "--out", "s").code == 0
    assert "--strategy random" in (tmp_path / "s" / "report.md").read_text()
    assert re.search(r"Strategy</t[dh]>\s*<td[^>]*>random<", (tmp_path / "s" / "report.html").read_text())


def test_a_strategy_that_cannot_work_is_refused_and_leaves_no_folder(tune: Tune, tmp_path: Path) -> None:
    for arguments, naming in (
        (["--strategy", "gird"], "did you mean grid"),
        (["--strategy", "grid", "--search", "queue_timeout=1s..1m", "--search", "max_queue_len=1..99",
          "--search", "aging=1s..1m", "--search", "policy=fcfs,sjf"], "combinations"),
    ):  # fmt: skip
        outcome = tune(*START, *arguments, "--out", "s")
        assert outcome.code == 2
        assert "Traceback" not in outcome.err
        assert naming in outcome.err
        assert not (tmp_path / "s").exists()


def test_resume_keeps_the_strategy_of_the_study(tune: Tune, tmp_path: Path) -> None:
    assert tune(*START, "--strategy", "random", "--trials", "1", "--out", "s").code == 0
    outcome = tune("--resume", "s", "--strategy", "grid", "--trials", "2")
    assert outcome.code == 2
    assert "--resume takes the study's own options" in outcome.err
