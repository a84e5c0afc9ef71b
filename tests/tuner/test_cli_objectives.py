"""`--objective` from the command line to the front in the records and the reports, and on when a study is resumed."""

from pathlib import Path

import pytest

from tests.tuner.small_studies import (
    ENGINE,
    FEW_SEATS,
    SMALL,
    Outcome,
    Tune,
    files_in,
    measured_twice,
    read_json,
    study_in,
)

# In a closed loop more seats give more tokens and make each of them slower.
CLOSED = (
    *ENGINE,
    *("--workload", "chat-small", "--output-tokens", "uniform:4..16", "--arrival", "closed:24"),
    *("--window", "8s", "--warmup", "1s", "--slo", "p95_ttft=3s,p95_tpot=120ms", "--seed", "1", "--strategy", "random"),
    *("--set", "max_num_seqs=8", "--search", "max_num_seqs=2..24"),
)
SEVERAL = (*CLOSED, "--objective", "output_throughput,p95_tpot")


def values(study: dict, number: int) -> dict:
    return next(t["values"] for t in study["trials"] if t["number"] == number)


def test_a_study_with_two_objectives_leaves_its_front_in_all_records_and_reports(tune: Tune, tmp_path: Path) -> None:
    outcome = tune(*SEVERAL, "--trials", "6", "--out", "s")
    assert outcome.code == 0, outcome.err
    study = study_in(tmp_path / "s")
    assert [o["name"] for o in study["objectives"]] == ["output_throughput", "p95_tpot"]
    front = study["front"]
    assert len(front["members"]) >= 2
    tokens = [point["values"]["output_throughput"] for point in front["members"]]
    delays = [point["values"]["p95_tpot"] for point in front["members"]]
    assert tokens == sorted(tokens, reverse=True)
    assert delays == sorted(delays, reverse=True)
    assert {point["measured"] for point in front["members"]} == {2}
    assert front["default"]["trial"] == 0
    held = [t["number"] for t in study["trials"] if t["state"] == "complete"]
    first = max(held, key=lambda n: values(study, n)["output_throughput"])
    assert first in [point["trial"] for point in (*front["members"], *front["left"])]
    best = read_json(tmp_path / "s" / "best.json")
    assert (best["front"], best["objectives"]) == (front, study["objectives"])
    assert measured_twice(tmp_path / "s") == []
    for name, text in files_in(tmp_path / "s").items():
        if name.startswith("report."):
            assert b"The front" in text
    assert "The front" in outcome.out


def test_the_twin_is_the_default_and_says_what_it_expected_of_each_objective(tune: Tune, tmp_path: Path) -> None:
    """From 8 seats alone the first is a guess at steps that were never seen; with its run the next is foretold."""
    without = [*CLOSED[: CLOSED.index("--strategy")], *CLOSED[CLOSED.index("--strategy") + 2 :]]
    outcome = tune(*without, "--objective", "output_throughput,p95_tpot", "--trials", "2", "--out", "s")
    assert outcome.code == 0, outcome.err
    study = study_in(tmp_path / "s")
    assert study["options"]["strategy"] == "twin"
    _, first, second = study["trials"]
    assert first["values"]["output_throughput"] > 1.5 * values(study, 0)["output_throughput"]
    assert set(second["predicted_values"]) == {"output_throughput", "p95_tpot"}
    for name, expected in second["predicted_values"].items():
        assert expected == pytest.approx(second["values"][name], rel=0.25), name
    assert "it expects output tokens" in outcome.err
    assert "Output tokens predicted" in (tmp_path / "s" / "report.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("no_reports")
def test_a_resumed_study_keeps_its_objectives_and_measures_nothing_twice(tune: Tune, tmp_path: Path) -> None:
    assert tune(*SEVERAL, "--trials", "2", "--out", "s").code == 0
    before = study_in(tmp_path / "s")
    outcome = tune("--resume", "s", "--trials", "4")
    assert outcome.code == 0, outcome.err
    after = study_in(tmp_path / "s")
    assert after["objectives"] == before["objectives"]
    assert [t["number"] for t in after["trials"]] == [0, 1, 2, 3, 4]
    assert after["trials"][1:3] == before["trials"][1:]
    assert measured_twice(tmp_path / "s") == []
    refused = tune("--resume", "s", "--objective", "goodput", "--trials", "5")
    assert refused.code == 2
    assert "--resume takes the study's own options" in refused.err


def test_a_latency_alone_is_minimised_and_claimed(tune: Tune, tmp_path: Path) -> None:
    outcome = tune(*CLOSED, "--objective", "p95_tpot", "--trials", "3", "--out", "s")
    assert outcome.code == 0, outcome.err
    study = study_in(tmp_path / "s")
    assert "front" not in study
    held = {t["number"]: t["values"]["p95_tpot"] for t in study["trials"] if t["state"] == "complete"}
    confirmation = study["confirmation"]
    if confirmation["winner"] is not None:
        winner = next(t for t in study["trials"] if t["settings"] == confirmation["winner"]["settings"])
        assert held[winner["number"]] == min(held.values())
        assert confirmation["metric"] == "p95_tpot_ms"
        assert "p95 TPOT" in confirmation["text"]
    assert "p95 TPOT" in (tmp_path / "s" / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "naming"),
    [
        (["--objective", "goodput,p95_ttft"], "give --rate"),
        (["--objective", "p95_ttft"], "give --rate"),
        (["--objective", "speed", "--rate", "4"], "'speed' is unknown"),
        (["--objective", "goodput,goodput", "--rate", "4"], "twice"),
        (["--objective", "goodput,p95_ttft", "--rate", "4", "--strategy", "staged"], "choose one of twin"),
        (["--objective", "goodput,p95_ttft", "--rate", "4", "--strategy", "cmaes"], "choose one of twin"),
    ],
)
def test_objectives_that_cannot_be_are_refused_and_leave_no_folder(
    tune: Tune, tmp_path: Path, arguments: list[str], naming: str
) -> None:
    outcome = tune(*SMALL, *FEW_SEATS, *arguments, "--trials", "1", "--out", "s")
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    assert naming in outcome.err
    assert not (tmp_path / "s").exists()


def test_a_study_of_goodput_alone_has_neither_objectives_nor_a_front(whole_study: tuple[Path, Outcome]) -> None:
    folder, _ = whole_study
    study = study_in(folder)
    assert not {"objectives", "front"} & (set(study) | set(read_json(folder / "best.json")))
    assert all("values" not in trial for trial in study["trials"])
    assert study["confirmation"]["metric"] == "request_goodput"
    assert "The front" not in (folder / "report.md").read_text(encoding="utf-8")
