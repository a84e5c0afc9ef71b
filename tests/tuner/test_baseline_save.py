"""`tune baseline save` and `repeat`: what may become a baseline, and how often it is measured again."""

import os
from pathlib import Path
from typing import Any

import pytest

from reports.diff.load import load_side
from tests.tuner.kept_runs import interrupt_in, noisy_machine, run, stored_baseline, stored_run
from tests.tuner.small_studies import Outcome, Tune, read_json, study_in
from workloads.early_stop import BEHIND, HELD, INTERRUPTED, VERDICT_SETTLED

SAVE = ("baseline", "save", "main")


def record_of(name: str = "main") -> dict[str, Any]:
    return read_json(Path("baselines", name, "baseline.json"))


def kept(name: str = "main") -> list[tuple[int, str]]:
    """Seed and session of each run."""
    return [(entry["seed"], entry["session"]) for entry in record_of(name)["runs"]]


def refused(tune: Tune, *arguments: str, naming: str) -> None:
    outcome = tune("baseline", *arguments)
    assert outcome.code == 2, outcome
    assert outcome.err.splitlines()[-1].startswith("error: ")
    assert naming in outcome.err.splitlines()[-1], outcome.err


def test_a_simulated_run_becomes_a_baseline_without_being_measured_again(tune: Tune) -> None:
    stored_run(Path("r"))
    outcome = tune(*SAVE, "r")
    assert outcome.code == 0, outcome.err
    assert record_of()["source"] == {"kind": "run", "folder": "r"}
    (only,) = load_side("baselines/main").runs
    assert only.record.meta == run().record.meta
    assert "repeat" not in outcome.err


def test_without_a_folder_the_newest_study_or_run_is_taken_and_named(tune: Tune) -> None:
    for place, (name, seed) in enumerate((("b", 7), ("a", 8))):
        file = stored_run(Path("runs", name), seed) / "run.json"
        os.utime(file, (place, place))
    outcome = tune(*SAVE)
    assert outcome.code == 0, outcome.err
    assert "from the run runs/a" in outcome.err
    assert [seed for seed, _ in kept()] == [8]


def test_nothing_to_save_is_refused(tune: Tune, tmp_path: Path) -> None:
    refused(tune, "save", "main", naming="no study or run under 'runs'")
    refused(tune, "save", "main", "nowhere", naming="'nowhere' does not exist")
    refused(tune, "save", "../main", naming="is no name for a baseline")
    assert list(tmp_path.iterdir()) == []


def test_a_study_becomes_a_baseline_of_what_it_recommends(
    tune: Tune, whole_study: tuple[Path, Outcome], tmp_path: Path
) -> None:
    study = study_in(whole_study[0])
    outcome = tune(*SAVE, str(whole_study[0]))
    assert outcome.code == 0, outcome.err
    record = record_of()
    assert record["source"]["kind"] == "study"
    assert (record["settings"], record["rate"]) == (study["best"]["settings"], study["best"]["rate"])
    assert all(run["stopped_early"] is None for run in (r.record.meta for r in load_side("baselines/main").runs))


@pytest.mark.parametrize("stopped", [VERDICT_SETTLED, HELD, BEHIND])
def test_a_run_that_ended_when_enough_was_known_is_measured_again_whole(tune: Tune, stopped: str) -> None:
    stored_run(Path("r"), stopped_early=stopped)
    outcome = tune(*SAVE, "r")
    assert outcome.code == 0, outcome.err
    assert f"left out: the run stopped early ({stopped})" in outcome.err
    (only,) = load_side("baselines/main").runs
    assert only.record.meta["stopped_early"] is None
    assert only.record.request_records() == run().record.request_records()
    refused(tune, "save", "other", "r", "--repeats", "0", naming="leave --repeats 0 out")


INVALID = {"valid": False, "checks": [{"name": "lag", "ok": False, "detail": "it lagged"}]}


@pytest.mark.parametrize(
    ("changes", "naming"),
    [
        ({"stopped_early": "failed: RuntimeError: crash"}, "the run broke off (RuntimeError: crash)"),
        ({"stopped_early": INTERRUPTED}, "the run was interrupted"),
        ({"validity": INVALID}, "the run is not valid: it lagged"),
        ({"validity": INVALID, "stopped_early": VERDICT_SETTLED}, "stopped early"),
        ({"window": {"start_ns": 0, "end_ns": 1, "requests": 0}}, "no request was scheduled in the window"),
        ({"schema_version": 1}, "schema_version 1"),
        ({"load": None}, "load is None"),
        ({"device": {"name": "L4", "kind": "cuda"}}, "device is damaged: memory_bytes is missing"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)
def test_a_run_that_says_nothing_is_refused_with_the_reason(tune: Tune, changes: dict[str, Any], naming: str) -> None:
    stored_run(Path("r"), **changes)
    refused(tune, "save", "main", "r", naming=naming)
    assert not Path("baselines").exists()


def test_a_name_that_is_taken_is_refused_before_anything_is_measured(tune: Tune) -> None:
    stored_baseline(Path("baselines/main"))
    stored_run(Path("r"), seed=9)
    refused(tune, "save", "main", "r", naming="exists already")
    assert tune(*SAVE, "r", "--force").code == 0
    assert [seed for seed, _ in kept()] == [9]


def test_another_baseline_is_copied_by_its_name(tune: Tune) -> None:
    stored_baseline(Path("baselines/old"))
    assert tune(*SAVE, "old").code == 0
    assert record_of()["runs"] == record_of("old")["runs"]
    assert record_of()["source"] == {"kind": "baseline", "folder": "baselines/old"}


@pytest.mark.parametrize(("seeds", "rounds"), [((7,), 5), ((7, 8), 3)])
def test_on_a_device_each_seed_is_measured_until_the_noise_has_four_degrees_of_freedom(
    tune: Tune, seeds: tuple[int, ...], rounds: int
) -> None:
    with noisy_machine(seed=1):
        stored_baseline(Path("real"), seeds, simulated=False)
        outcome = tune(*SAVE, "real")
    assert outcome.code == 0, outcome.err
    first, again = kept()[: len(seeds)], kept()[len(seeds) :]
    assert [seed for seed, _ in again] == list(seeds) * rounds
    assert len({session for _, session in again}) == 1
    assert {session for _, session in again}.isdisjoint({session for _, session in first})
    assert len(seeds) * (rounds - 1) == 4
    assert "noise of a run: p95_ttft" in outcome.err


def test_repeats_that_are_there_need_no_more(tune: Tune) -> None:
    with noisy_machine(seed=2):
        stored_baseline(Path("real"), (7, 7), simulated=False)
        outcome = tune(*SAVE, "real")
    assert outcome.code == 0, outcome.err
    assert [seed for seed, _ in kept()] == [7, 7]


def test_another_machine_measures_no_repeats_but_may_keep_the_runs(tune: Tune) -> None:
    with noisy_machine(seed=3):
        stored_run(Path("r"), simulated=False, environment=run().record.meta["environment"] | {"cpu": "Z80"})
        refused(tune, "save", "main", "r", naming="its cpu is Z80")
        assert not Path("baselines").exists()
        assert tune(*SAVE, "r", "--repeats", "0").code == 0
        refused(tune, "repeat", "main", naming="its cpu is Z80")


def test_repeat_adds_a_session(tune: Tune) -> None:
    with noisy_machine(seed=4):
        stored_baseline(Path("baselines/main"), (7,), simulated=False)
        outcome = tune("baseline", "repeat", "main", "--repeats", "2")
    assert outcome.code == 0, outcome.err
    assert [seed for seed, _ in kept()] == [7, 7, 7]
    assert len({session for _, session in kept()}) == 2
    assert "3 runs, 2 sessions" in outcome.err


def test_a_simulated_baseline_is_not_repeated(tune: Tune) -> None:
    stored_baseline(Path("baselines/main"))
    refused(tune, "repeat", "main", naming="to the last digit")
    refused(tune, "repeat", "nothing", naming="no baseline 'nothing'")


def test_a_repeat_that_cannot_be_trusted_is_left_out(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    with noisy_machine(seed=5):
        stored_baseline(Path("baselines/main"), (7,), simulated=False)
        monkeypatch.setattr("tuner.targets.run_meta.check_validity", lambda result, plan: INVALID)
        outcome = tune("baseline", "repeat", "main", "--repeats", "1")
    assert outcome.code == 2, outcome.err
    assert "0 of 1 repeats were added" in outcome.err
    assert "left out: the run is not valid: it lagged" in outcome.err
    assert len(kept()) == 1


@pytest.mark.parametrize("interrupted_run", [1, 2])
def test_an_interrupt_keeps_the_repeats_that_were_whole(
    tune: Tune, monkeypatch: pytest.MonkeyPatch, interrupted_run: int
) -> None:
    with noisy_machine(seed=6):
        stored_run(Path("r"), simulated=False)
        interrupt_in(monkeypatch, interrupted_run)
        outcome = tune(*SAVE, "r", "--repeats", "3")
    assert outcome.code == 130, outcome.err
    assert len(kept()) == interrupted_run


def test_an_interrupt_before_the_first_whole_run_saves_nothing(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    stored_run(Path("r"), stopped_early=HELD)
    interrupt_in(monkeypatch, 1)
    outcome = tune(*SAVE, "r")
    assert outcome.code == 130, outcome.err
    assert "nothing was saved" in outcome.err
    assert not Path("baselines/main").exists()
