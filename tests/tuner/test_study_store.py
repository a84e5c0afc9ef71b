"""A study's folder: what is found again, what is left alone, and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from engine.errors import UserError
from tuner.settings import Settings
from tuner.store import Run, StudyStore
from tuner.targets.bundled import Load, Measured
from workloads.records import SCHEMA_VERSION

LOAD = Load(rate=4.0, seed=1, warmup_s=1.0, window_s=8.0, drain_timeout_s=60.0)
NOT_YET = dict.fromkeys(
    ("device", "workload", "environment", "slo", "options", "importance", "best", "confirmation"), None
)
RECORD: dict[str, Any] = {"model": {"name": "toy"}, "state": "running", "trials": [], "elapsed_s": 0.0} | NOT_YET


def measured(settings: Settings | None = None, load: Load = LOAD, **changes: Any) -> Measured:
    meta: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": "run",
        "settings": (settings or Settings()).to_dict(),
        "rate": load.rate,
        "seed": load.seed,
        "load": {"warmup_s": load.warmup_s, "window_s": load.window_s, "drain_timeout_s": load.drain_timeout_s},
        "stopped_early": None,
        "verdict": {"state": "feasible", "bounds": [bound(0.95, 1.0)]},
        "validity": {"valid": True, "checks": []},
        "summary": {"request_goodput": 3.9},
    }
    return Measured(meta | changes, [], [])


def bound(required: float | None, met: float | None, observed_ms: float | None = 500.0) -> dict[str, Any]:
    return {"required_share": required, "met_share": met, "observed_ms": observed_ms, "bound_ms": 1000.0}


def run_with(**changes: Any) -> Run:
    return Run("runs/001", measured(**changes).meta)


@pytest.fixture
def store(tmp_path: Path) -> StudyStore:
    return StudyStore.create(tmp_path / "study", dict(RECORD))


def reopened(store: StudyStore) -> StudyStore:
    return StudyStore.open(store.path)


def test_a_new_study_can_be_opened_again(store: StudyStore) -> None:
    again = reopened(store)
    assert again.record == store.record
    assert (again.record["schema_version"], again.record["kind"]) == (SCHEMA_VERSION, "study")
    assert again.runs == []


def test_a_folder_with_anything_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        StudyStore.create(tmp_path, dict(RECORD))
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        StudyStore.create(tmp_path / "file" / "study", dict(RECORD))


def test_runs_are_numbered_in_order_and_found_again(store: StudyStore) -> None:
    paths = [store.add_run("baseline-4rps", measured(load=replace(LOAD, seed=seed))).path for seed in range(3)]
    assert paths == ["runs/001-baseline-4rps", "runs/002-baseline-4rps", "runs/003-baseline-4rps"]
    again = reopened(store)
    assert [run.path for run in again.runs] == paths
    assert again.add_run("trial1", measured()).path == "runs/004-trial1"


def test_a_run_of_the_same_settings_and_load_is_found(store: StudyStore) -> None:
    run = store.add_run("baseline", measured())
    for opened in (store, reopened(store)):
        found = opened.find_run(Settings(), LOAD)
        assert found is not None
        assert (found.path, found.meta) == (run.path, run.meta)


@pytest.mark.parametrize(
    ("settings", "load"),
    [
        (Settings(max_num_seqs=8), LOAD),
        (Settings(), replace(LOAD, rate=4.01)),
        (Settings(), replace(LOAD, rate=None)),
        (Settings(), replace(LOAD, seed=2)),
        (Settings(), replace(LOAD, warmup_s=2.0)),
        (Settings(), replace(LOAD, window_s=9.0)),
        (Settings(), replace(LOAD, drain_timeout_s=30.0)),
    ],
)
def test_a_run_that_differs_in_anything_is_not_taken_for_it(store: StudyStore, settings: Settings, load: Load) -> None:
    store.add_run("baseline", measured())
    assert store.find_run(settings, load) is None


def test_half_written_runs_are_ignored_and_complete_leftovers_removed(store: StudyStore) -> None:
    store.add_run("baseline", measured())
    runs = store.path / "runs"
    half = runs / ".002-trial1.77.partial"
    half.mkdir()
    (half / "requests.parquet").write_bytes(b"PAR1")
    whole = runs / ".003-trial2.77.partial"
    shutil.copytree(runs / "001-baseline", whole)
    (whole / "run.json").write_text(json.dumps(measured(load=replace(LOAD, seed=5)).meta))
    (runs / "004-copied").mkdir()
    again = reopened(store)
    assert [run.path for run in again.runs] == ["runs/001-baseline"]
    assert again.find_run(Settings(), replace(LOAD, seed=5)) is None
    assert not whole.exists()
    assert again.add_run("trial1", measured(load=replace(LOAD, seed=6))).path == "runs/002-trial1"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"schema_version": 99, "kind": "run"}'])
def test_a_damaged_run_is_named_with_what_to_do(store: StudyStore, content: str) -> None:
    run = store.add_run("baseline", measured())
    (store.path / run.path / "run.json").write_text(content)
    with pytest.raises(UserError, match=r"001-baseline.*remove its folder"):
        reopened(store)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "not JSON"),
        ('{"schema_version": 2, "ki', "not JSON"),
        ("[1]", "list"),
        ('{"schema_version": 99, "kind": "study"}', "schema_version 99"),
        (json.dumps({"schema_version": SCHEMA_VERSION, "kind": "run"}), "'run'"),
        (json.dumps({"schema_version": SCHEMA_VERSION, "kind": "study"}), "model"),
    ],
)
def test_a_damaged_or_foreign_record_is_refused(store: StudyStore, content: str, fault: str) -> None:
    (store.path / "study.json").write_text(content)
    with pytest.raises(UserError, match=fault) as refusal:
        reopened(store)
    assert "study.json" in str(refusal.value)


def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no study\.json"):
        StudyStore.open(tmp_path)


def test_the_optuna_study_is_kept_between_processes(store: StudyStore) -> None:
    store.optuna_study().add_trial(optuna.trial.create_trial(value=1.0))
    study = reopened(store).optuna_study()
    assert [t.value for t in study.trials] == [1.0]
    assert study.direction == optuna.study.StudyDirection.MAXIMIZE


@pytest.mark.parametrize("content", [b"not a database", b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_damaged_database_is_refused_with_what_to_do(store: StudyStore, content: bytes) -> None:
    (store.path / "study.db").write_bytes(content)
    with pytest.raises(UserError, match=r"study\.db is damaged.*remove study\.db"):
        store.optuna_study()


def test_a_truncated_database_is_refused_with_what_to_do(store: StudyStore) -> None:
    store.optuna_study().add_trial(optuna.trial.create_trial(value=1.0))
    database = store.path / "study.db"
    database.write_bytes(database.read_bytes()[:5000])
    with pytest.raises(UserError, match=r"study\.db is damaged"):
        store.optuna_study()


@pytest.mark.parametrize(
    ("bounds", "constraint"),
    [
        ([bound(0.95, 1.0)], -0.05),
        ([bound(0.95, 0.75)], 0.2),
        ([bound(0.95, None)], 0.95),
        ([bound(None, 1.0, observed_ms=1500.0)], 0.5),
        ([bound(None, None, observed_ms=None)], 1.0),
        ([bound(0.95, 1.0), bound(0.5, 0.25)], 0.25),
    ],
)
def test_constraint_is_how_far_the_worst_bound_is_missed(bounds: list[dict[str, Any]], constraint: float) -> None:
    run = run_with(verdict={"state": "feasible", "bounds": bounds})
    assert run.constraint == pytest.approx(constraint)
    assert run.held is (constraint <= 0)


def test_a_run_that_ended_because_it_held_beyond_doubt_has_held_and_counts_at_the_offered_rate() -> None:
    summary = {"request_goodput": 3.9, "good_requests": 15}
    window = {"start_ns": 0, "end_ns": 4_000_000_000, "requests": 20}
    run = run_with(stopped_early="held beyond doubt", summary=summary, window=window)
    assert run.held
    assert LOAD.rate is not None
    assert run.goodput == LOAD.rate * 15 / 20


@pytest.mark.parametrize(
    "changes",
    [
        {"validity": {"valid": False, "checks": []}},
        {"stopped_early": "backlog grows without bound"},
        {"stopped_early": "behind the best so far"},
        {"stopped_early": "failed: OutOfDeviceMemory: no room"},
    ],
)
def test_a_run_that_cannot_be_trusted_or_did_not_end_holds_nothing(changes: dict[str, Any]) -> None:
    run = run_with(**changes)
    assert not run.held
    failed = "failed" in str(changes.get("stopped_early"))
    assert run.failure == ("OutOfDeviceMemory: no room" if failed else None)
    assert run.constraint == (1.0 if failed else pytest.approx(-0.05))
