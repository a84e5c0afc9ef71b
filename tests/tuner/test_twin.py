"""A device that was learnt from its runs: what it predicts of other settings, and the commands around it.

The device that is learnt from here is a simulated card whose runs are passed off as measured: the truth is known, and
its step times have another form than those that are learnt.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UserError
from engine.executor.learnt_device import LearntDevice
from tests.tuner.small_studies import Tune, read_json
from tuner.settings import Settings
from tuner.targets.bundled import BundledTarget, Load, TargetOptions
from tuner.twin.accuracy import accuracy, replay
from tuner.twin.fit import learn_device
from workloads.records import RunRecord, write_run
from workloads.slo import parse_slo
from workloads.spec import load_spec

MODEL, CARD = "random:qwen2.5-7b", "sim:l4"
SPEC = load_spec("chat-small", ["output_tokens=uniform:16..64"])
SETTINGS = [
    Settings(),
    Settings(max_num_seqs=8),
    Settings(max_num_seqs=24, max_num_batched_tokens=512),
    Settings(max_num_batched_tokens=256, chunk_size=64),
    Settings(max_num_seqs=12, chunk_size=32),
]


def measure(folder: Path, settings: Settings, **changes: Any) -> RunRecord:
    target = BundledTarget(TargetOptions(MODEL, CARD), SPEC, settings)
    load = Load(rate=3.0, seed=5, warmup_s=4.0, window_s=20.0)
    measured = target.measure(settings, load, parse_slo(["p95_ttft=1s"]), stop_when_settled=False)
    meta = measured.meta | {"simulated": False} | changes
    meta["model"] = meta["model"] | {"dtype": "bfloat16"} | changes.get("model", {})
    return RunRecord.load(write_run(folder, meta, measured.requests, measured.iterations))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunRecord]:
    folder = tmp_path_factory.mktemp("runs")
    return [measure(folder / str(number), settings) for number, settings in enumerate(SETTINGS)]


@pytest.fixture(scope="module")
def learnt(runs: list[RunRecord], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("learnt") / "card.json"
    path.write_text(learn_device(runs[:1]).to_json())
    return path


def test_one_run_teaches_enough_to_rank_other_settings(runs: list[RunRecord], learnt: Path) -> None:
    rows = replay(f"sim:{learnt}", runs[1:])
    assert len(rows) == 4
    for metric in ("p95 TTFT", "p95 TPOT"):
        found = accuracy(rows, metric)
        assert found.median_error is not None
        assert found.median_error < 0.15, metric
        assert found.rank_correlation is not None
        assert found.rank_correlation >= 0.8, metric


def test_the_replay_of_the_run_that_was_learnt_from_is_close(runs: list[RunRecord], learnt: Path) -> None:
    (row,) = replay(f"sim:{learnt}", runs[:1])
    assert abs(row.error("p95 TTFT") or 1) < 0.1
    assert row.extrapolated == 0


def test_a_replay_repeats_itself(runs: list[RunRecord], learnt: Path) -> None:
    assert replay(f"sim:{learnt}", runs[:2]) == replay(f"sim:{learnt}", runs[:2])


def test_a_learnt_device_survives_its_file(runs: list[RunRecord], learnt: Path) -> None:
    assert LearntDevice.load(learnt) == learn_device(runs[:1])


def test_the_same_room_for_the_cache_follows_from_the_same_memory(runs: list[RunRecord], learnt: Path) -> None:
    target = BundledTarget(TargetOptions(MODEL, f"sim:{learnt}"), SPEC, SETTINGS[0])
    assert target.engine.num_blocks == pytest.approx(runs[0].meta["memory"]["num_blocks"], rel=0.01)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"device": {"name": "another"}}, "different devices"),
        ({"model": {"name": "another"}}, "different models"),
    ],
)
def test_runs_that_do_not_belong_together_are_refused(
    tmp_path: Path, runs: list[RunRecord], change: dict[str, Any], why: str
) -> None:
    other = measure(tmp_path / "other", SETTINGS[0], **change)
    with pytest.raises(UserError, match=why):
        learn_device([runs[0], other])


def test_simulated_runs_are_no_measurements(tune: Tune, tmp_path: Path) -> None:
    run = measure(tmp_path / "simulated", SETTINGS[0], simulated=True)
    refused = tune("twin", "fit", str(run.path), "-o", str(tmp_path / "x.json"))
    assert (refused.code, "a simulated run teaches nothing" in refused.err) == (2, True)


def test_a_learnt_device_says_nothing_of_another_model(learnt: Path) -> None:
    with pytest.raises(UserError, match="was learnt with the model random"):
        BundledTarget(TargetOptions("random:llama-3.1-8b", f"sim:{learnt}"), SPEC, SETTINGS[0])


def test_runs_that_ended_early_are_not_compared(tmp_path: Path, learnt: Path) -> None:
    part = measure(tmp_path / "part", SETTINGS[0], stopped_early="verdict settled")
    with pytest.raises(UserError, match="no run that went to its end"):
        replay(f"sim:{learnt}", [part])


def test_fit_check_and_bench_from_the_command_line(tune: Tune, runs: list[RunRecord], tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    fitted = tune("twin", "fit", str(runs[0].path), str(runs[1].path), "-o", str(file))
    assert fitted.code == 0, fitted.err
    assert "learnt from" in fitted.out
    checked = tune("twin", "check", str(file), *(str(run.path) for run in runs[2:]))
    assert checked.code == 0, checked.err
    assert "p95 TTFT: median error" in checked.out
    as_json = json.loads(tune("twin", "check", str(file), str(runs[2].path), "--json").out)
    assert set(as_json) == {"runs", "accuracy"}
    out = tmp_path / "bench"
    benched = tune(
        "bench",
        "--device",
        f"sim:{file}",
        "--workload",
        "chat-small",
        "--rate",
        "3",
        "--window",
        "8s",
        "--out",
        str(out),
    )
    assert benched.code == 0, benched.err
    meta = read_json(out / "run.json")
    assert meta["simulated"] is True
    assert meta["model"]["name"] == MODEL


@pytest.mark.parametrize("content", ["no json", "[]", '{"kind": "learnt device"}', '{"kind": "study"}'])
def test_a_file_that_is_no_learnt_device_is_refused(tune: Tune, tmp_path: Path, content: str) -> None:
    file = tmp_path / "card.json"
    file.write_text(content)
    refused = tune("bench", "--device", f"sim:{file}", "--rate", "1")
    assert refused.code == 2
    assert "Traceback" not in refused.err


def test_folders_without_runs_and_files_of_another_kind_are_refused(tune: Tune, tmp_path: Path) -> None:
    nothing = tune("twin", "fit", str(tmp_path), "-o", str(tmp_path / "x.json"))
    assert (nothing.code, "holds no runs" in nothing.err) == (2, True)
    wrong = tune("twin", "fit", str(tmp_path), "-o", str(tmp_path / "x.txt"))
    assert (wrong.code, "ends with .json" in wrong.err) == (2, True)
    missing = tune("bench", "--device", f"sim:{tmp_path}/none.json", "--rate", "1")
    assert (missing.code, "cannot be read" in missing.err) == (2, True)
