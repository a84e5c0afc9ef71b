"""Searching on the twin: few settings are measured, each with what was expected of it, and then it is enough."""

from pathlib import Path

from tests.tuner.small_studies import FEW_SEATS, SMALL, Tune, measured_twice, study_in

SEARCH = (*SMALL, *FEW_SEATS, "--strategy", "twin", "--seed", "1")


def test_the_twin_finds_in_one_trial_what_seats_are_worth_and_says_what_it_expected(tune: Tune, tmp_path: Path) -> None:
    """The default's four seats hold a tenth of what the card can do, which its runs are enough to foretell."""
    outcome = tune(*SEARCH, "--trials", "1", "--out", str(tmp_path / "study"))
    assert outcome.code == 0, outcome.err
    study = study_in(tmp_path / "study")
    baseline, first = study["trials"][:2]
    assert baseline["predicted"] is None
    expected_rate, expected_goodput = first["predicted"]
    assert first["rate"] > 4 * baseline["rate"]
    assert 0.7 < expected_rate / first["rate"] < 1.5
    assert expected_goodput > 0
    assert (tmp_path / "study" / "twin.json").is_file()
    assert "Predicted and measured" in (tmp_path / "study" / "report.md").read_text(encoding="utf-8")
    assert study["options"]["strategy"] == "twin"


def test_a_study_on_the_twin_goes_on_where_it_was(tune: Tune, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    assert tune(*SEARCH, "--trials", "1", "--out", str(folder)).code == 0
    before = study_in(folder)["trials"]
    resumed = tune("--resume", str(folder), "--trials", "2")
    assert resumed.code == 0, resumed.err
    after = study_in(folder)["trials"]
    assert [t["predicted"] for t in after[: len(before)]] == [t["predicted"] for t in before]
    assert not measured_twice(folder)


def test_at_a_fixed_rate_settings_are_compared_by_their_goodput(tune: Tune, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    assert tune(*SEARCH, "--rate", "8", "--trials", "1", "--out", str(folder)).code == 0
    _, first = study_in(folder)["trials"]
    assert first["state"] == "complete"
    assert first["rate"] == 8
