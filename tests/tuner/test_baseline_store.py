"""A baseline's folder: whole or not at all, under a name that can be a folder's, refused by name when it is damaged."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UserError
from reports.diff.load import load_side
from tests.tuner.kept_runs import OPTIONS, SEATS, SPEC, make_target, run, stored_baseline
from tests.tuner.small_studies import read_json
from tuner.baseline.files import Origin
from tuner.baseline.noise import measured_noise
from tuner.baseline.record import Baseline, options_of, other_machine
from tuner.baseline.store import add_run, create, names_in, open_baseline, remove, require_name
from tuner.lock import alone_in
from tuner.settings import Settings
from workloads.records import SCHEMA_VERSION


def test_a_baseline_is_read_back_as_it_was_measured(tmp_path: Path) -> None:
    stored_baseline(tmp_path / "main")
    baseline = open_baseline(tmp_path, "main")
    assert (baseline.name, baseline.settings, baseline.rate, baseline.seeds) == ("main", SEATS, 4.0, (7, 8))
    assert baseline.spec == SPEC
    assert str(baseline.slo) == "p95_ttft=1s,p95_tpot=120ms"
    side = load_side(baseline.path)
    for kept, original in zip(side.runs, (run(7), run(8)), strict=True):
        assert kept.record.meta == original.record.meta
        assert kept.record.request_records() == original.record.request_records()
        assert kept.record.iteration_records() == original.record.iteration_records()


def test_the_record_says_everything_that_the_schema_names(tmp_path: Path) -> None:
    record = read_json(stored_baseline(tmp_path / "main").path / "baseline.json")
    assert (record["schema_version"], record["kind"], record["name"]) == (SCHEMA_VERSION, "baseline", "main")
    assert record["source"] == {"kind": "run", "folder": "somewhere"}
    assert [(r["path"], r["seed"]) for r in record["runs"]] == [("runs/001-seed7", 7), ("runs/002-seed8", 8)]
    meta = run().record.meta
    for key in ("simulated", "model", "device", "environment", "workload", "rate", "load", "slo", "settings"):
        assert record[key] == meta[key]


def test_what_loads_the_engine_again_loads_the_same_one(tmp_path: Path) -> None:
    options = stored_baseline(tmp_path / "main").target_options
    assert (options.model, options.device) == (OPTIONS.model, OPTIONS.device)
    record = open_baseline(tmp_path, "main").record
    target = make_target()
    assert (target.describe_model(), target.describe_device()) == (record["model"], record["device"])


@pytest.mark.parametrize(
    ("device", "asked"),
    [
        ({"name": "L4", "kind": "cuda", "memory_bytes": 24}, ("cuda", None)),
        ({"name": "CPU", "kind": "cpu", "memory_bytes": 12}, ("cpu", 12)),
        ({"name": "sim:l4", "kind": "sim", "memory_bytes": 24}, ("sim:l4", 24)),
    ],
    ids=lambda value: value.get("kind") if isinstance(value, dict) else "",
)
def test_memory_is_pinned_where_it_is_not_the_cards_own(device: dict[str, Any], asked: tuple[str, Any]) -> None:
    options = options_of({"model": run().record.meta["model"], "device": device})
    assert (options.device, options.device_memory_bytes) == asked


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "-x", "a b", "ä", "x" * 101])
def test_a_name_that_is_no_folders_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="is no name for a baseline"):
        require_name(name)


@pytest.mark.parametrize("name", ["main", "release-1.2", "0", "A_b"])
def test_letters_digits_and_a_few_marks_make_a_name(name: str) -> None:
    assert require_name(name) == name


def test_a_name_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is none yet"):
        open_baseline(tmp_path, "main")
    stored_baseline(tmp_path / "old")
    with pytest.raises(UserError, match=r"no baseline 'main' .* there are old"):
        open_baseline(tmp_path, "main")


def test_an_existing_baseline_is_replaced_only_when_asked(tmp_path: Path) -> None:
    stored_baseline(tmp_path / "main")
    with pytest.raises(UserError, match="exists already"):
        stored_baseline(tmp_path / "main", seeds=(9,))
    assert create(tmp_path / "main", Origin("run", "x"), [run(9)], replace=True).seeds == (9,)
    assert [path.name for path in tmp_path.iterdir()] == ["main"]


def test_a_baseline_that_cannot_be_written_whole_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_baseline(tmp_path / "main", seeds=(7,))

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("tuner.baseline.files.write_atomic", full)
    with pytest.raises(UserError, match="No space left"):
        create(tmp_path / "main", Origin("run", "x"), [run(9)], replace=True)
    assert open_baseline(tmp_path, "main").seeds == (7,)
    assert [path.name for path in tmp_path.iterdir()] == ["main"]


def test_runs_of_other_settings_do_not_go_together(tmp_path: Path) -> None:
    runs = [run(7), run(8, Settings(max_num_seqs=8))]
    with pytest.raises(UserError, match="differ in their settings"):
        create(tmp_path / "main", Origin("run", "x"), runs)
    assert not (tmp_path / "main").exists()
    with pytest.raises(UserError, match="differ in their rate"):
        add_run(stored_baseline(tmp_path / "main"), run(9, rate=5.0))


def test_a_run_is_added_under_the_next_number(tmp_path: Path) -> None:
    baseline = add_run(stored_baseline(tmp_path / "main"), run(7, session="2026-01-02T00:00:00+00:00"))
    assert baseline.record["runs"][-1] == {
        "path": "runs/003-seed7", "seed": 7, "session": "2026-01-02T00:00:00+00:00"
    }  # fmt: skip
    assert Baseline.load(baseline.path).record == baseline.record


def test_a_removed_baseline_is_gone_and_the_others_stay(tmp_path: Path) -> None:
    stored_baseline(tmp_path / "main")
    stored_baseline(tmp_path / "other")
    remove(tmp_path, "main")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    with pytest.raises(UserError, match="no baseline 'main'"):
        remove(tmp_path, "main")


def test_nobody_changes_a_baseline_that_is_in_use(tmp_path: Path) -> None:
    path = stored_baseline(tmp_path / "main").path
    with alone_in(path):
        with pytest.raises(UserError, match="in use"):
            remove(tmp_path, "main")
        with pytest.raises(UserError, match="in use"):
            create(path, Origin("run", "x"), [run()], replace=True)
    assert open_baseline(tmp_path, "main").seeds == (7, 8)


def damage(path: Path, **changes: Any) -> None:
    file = path / "baseline.json"
    record = {key: value for key, value in (read_json(file) | changes).items() if value is not ...}
    file.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("changes", "naming"),
    [
        ({"schema_version": 1}, "schema_version 1"),
        ({"kind": "study"}, "kind 'study'"),
        ({"settings": ...}, "settings is missing"),
        ({"runs": []}, "no runs"),
        ({"runs": [{"path": "runs/001-seed7", "seed": 7}]}, "session is missing"),
        ({"load": {"warmup_s": 1.0, "window_s": 6.0}}, "drain_timeout_s is missing"),
        ({"rate": "fast"}, "rate is 'fast'"),
        ({"target": {"model": "m"}}, "device is missing"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_an_older_or_damaged_record_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], naming: str) -> None:
    damage(stored_baseline(tmp_path / "main").path, **changes)
    with pytest.raises(UserError, match=naming) as error:
        open_baseline(tmp_path, "main")
    assert "baseline.json" in str(error.value)


def test_settings_and_options_of_no_known_name_are_refused(tmp_path: Path) -> None:
    path = stored_baseline(tmp_path / "main").path
    damage(path, settings={"max_seats": 4}, target={"model": "m", "device": "cpu", "cores": 3})
    with pytest.raises(UserError, match="max_seats"):
        _ = Baseline.load(path).settings
    with pytest.raises(UserError, match="target has cores"):
        _ = Baseline.load(path).target_options


def test_only_folders_with_a_record_are_listed(tmp_path: Path) -> None:
    stored_baseline(tmp_path / "b")
    stored_baseline(tmp_path / "a")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".a.1.partial").mkdir()
    assert names_in(tmp_path) == ["a", "b"]
    assert names_in(tmp_path / "nowhere") == []


def test_another_machine_is_told_by_what_differs(tmp_path: Path) -> None:
    record = dict(stored_baseline(tmp_path / "main").record)
    target = make_target()
    assert other_machine(record, target) is None
    other = record | {"environment": record["environment"] | {"cpu_count": 999}}
    assert other_machine(other, target) is None, "who simulates does not matter"
    assert "its cpu_count is 999" in str(other_machine(other | {"simulated": False}, target))
    smaller = record | {"device": record["device"] | {"memory_bytes": 1}}
    assert "its memory_bytes is 1" in str(other_machine(smaller, target))


def test_the_noise_is_the_spread_of_runs_of_one_seed_in_one_session(tmp_path: Path) -> None:
    assert measured_noise(load_side(stored_baseline(tmp_path / "once").path)) == []
    summary = run().record.meta["summary"]
    slower = [run(summary=summary | {"mean_ttft_ms": summary["mean_ttft_ms"] * factor}) for factor in (1.0, 1.02)]
    baseline = create(tmp_path / "main", Origin("run", "x"), slower)
    noise = {n.metric: n for n in measured_noise(load_side(baseline.path))}
    # The two lie 2 % apart: the standard deviation is that over the square root of 2.
    assert noise["mean_ttft"].share == pytest.approx(0.014, abs=0.0005)
    assert noise["mean_ttft"].freedom == 1
    assert noise["goodput"].share == 0.0
