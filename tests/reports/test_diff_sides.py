"""What can be one side of a diff, and which sides can be compared."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UserError
from reports.diff.comparable import ALLOWED, differences, require_comparable
from reports.diff.judge import judge
from reports.diff.load import load_side
from reports.diff.side import Side
from tests.reports.conftest import DEVICE, ENVIRONMENT, MODEL, WORKLOAD, MakeComparison, MakeRun, MakeStudy
from tests.reports.made_up_sides import made_up_run, made_up_side

MakeBaseline = Callable[..., Path]


@pytest.fixture
def make_baseline(tmp_path: Path, make_run: MakeRun) -> MakeBaseline:
    """Writes a baseline's folder with a run for each (seed, session); `change` edits baseline.json's content."""

    def make(
        name: str = "main",
        runs: tuple[tuple[int, str], ...] = ((1, "2026-11-28"), (1, "2026-11-29")),
        *,
        change: Callable[[dict[str, Any]], None] = lambda baseline: None,
    ) -> Path:
        folder = tmp_path / name
        (folder / "runs").mkdir(parents=True)
        entries: list[dict[str, Any]] = []
        for i, (seed, session) in enumerate(runs):
            path = f"runs/{i + 1:03d}-seed{seed}"
            make_run(f"{name}/{path}", seed=seed)
            entries.append({"path": path, "seed": seed, "session": session})
        meta = json.loads((folder / entries[0]["path"] / "run.json").read_text())
        keys = ("schema_version", "tool_version", "created", "simulated", "model", "device", "environment", "workload")
        baseline = {key: meta[key] for key in (*keys, "rate", "slo", "settings")}
        baseline |= {"kind": "baseline", "name": name, "target": {}, "load": {}, "runs": entries}
        change(baseline)
        (folder / "baseline.json").write_text(json.dumps(baseline))
        return folder

    return make


def test_a_run_is_a_side_of_its_own(make_run: MakeRun) -> None:
    folder = make_run("one", seed=3)
    side = load_side(folder)
    assert (side.name, side.seeds, side.sessions) == (str(folder), (3,), ("2026-11-29T12:00:00Z",))
    assert side.settings["max_num_seqs"] == 256


def test_a_baseline_has_the_runs_it_lists_with_their_seeds_and_sessions(make_baseline: MakeBaseline) -> None:
    side = load_side(make_baseline(runs=((1, "a"), (1, "b"), (2, "b"))))
    assert side.name == "main"
    assert [(run.seed, run.session) for run in side.runs] == [(1, "a"), (1, "b"), (2, "b")]
    assert (side.seeds, side.sessions) == ((1, 2), ("a", "b"))


def test_a_study_is_the_side_that_it_recommends(make_study: MakeStudy) -> None:
    winner = load_side(make_study())
    assert winner.settings["max_num_seqs"] == 48
    assert [run.record.meta["rate"] for run in winner.runs] == [6.0]

    def keep(study: dict[str, Any]) -> None:
        study["confirmation"]["verdict"] = "default is best"

    assert load_side(make_study("kept", change=keep)).settings["max_num_seqs"] == 4


def test_a_study_without_a_recommendation_is_refused(make_study: MakeStudy) -> None:
    def nothing(study: dict[str, Any]) -> None:
        study["best"] = study["confirmation"] = None
        for trial in study["trials"]:
            trial["state"], trial["rate"] = "infeasible", None

    with pytest.raises(UserError, match="recommends no settings"):
        load_side(make_study(change=nothing))


def test_what_is_no_side_is_refused(tmp_path: Path, make_comparison: MakeComparison) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load_side(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no baseline, run or study"):
        load_side(tmp_path)
    with pytest.raises(UserError, match="comparison"):
        load_side(make_comparison())


@pytest.mark.parametrize(
    ("change", "naming"),
    [
        ({"schema_version": 1}, "schema_version 1"),
        ({"kind": "run"}, "kind 'run'"),
        ({"runs": []}, "at least one run"),
        ({"runs": None}, "a list belongs"),
        ({"runs": [{"path": "runs/001-seed1", "seed": 1}]}, "session is missing"),
        ({"runs": [{"path": "../elsewhere", "seed": 1, "session": "a"}]}, "outside"),
        ({"runs": [{"path": "runs/009", "seed": 1, "session": "a"}]}, "runs/009"),
        ({"runs": [{"path": "runs/001-seed1", "seed": 2, "session": "a"}]}, "the seed of the run is 1, not 2"),
        ({"settings": {"max_num_seqs": 8}}, "the settings of the run"),
    ],
)
def test_a_damaged_or_older_baseline_is_refused_by_name(
    make_baseline: MakeBaseline, change: dict[str, Any], naming: str
) -> None:
    with pytest.raises(UserError, match=naming):
        load_side(make_baseline(change=lambda baseline: baseline.update(change)))


@pytest.mark.parametrize(
    ("change", "naming"),
    [
        ({"schema_version": 1}, "schema_version 1"),
        ({"window": {"start_ns": 0, "end_ns": 5, "requests": 0}}, "no request was scheduled"),
        ({"window": None}, "window"),
        ({"seed": "one"}, "seed"),
        ({"verdict": {"bounds": [{"metric": "ttft"}]}}, "statistic is missing"),
        ({"validity": {"valid": True, "checks": ["fine"]}}, "an object belongs"),
    ],
)
def test_a_damaged_older_or_empty_run_is_refused_by_name(
    make_run: MakeRun, change: dict[str, Any], naming: str
) -> None:
    with pytest.raises(UserError, match=naming):
        load_side(make_run(change=lambda meta: meta.update(change)))


def test_a_table_that_is_missing_is_refused(make_baseline: MakeBaseline) -> None:
    folder = make_baseline()
    (folder / "runs/001-seed1/requests.parquet").unlink()
    with pytest.raises(UserError, match=r"requests\.parquet is missing"):
        load_side(folder)


def test_a_copied_baseline_is_the_same_side(make_baseline: MakeBaseline, tmp_path: Path) -> None:
    folder = make_baseline()
    diff = judge(load_side(folder), load_side(shutil.copytree(folder, tmp_path / "elsewhere")))
    # Repeats of a simulated server are equal to the last digit, so nothing varies.
    assert {line.change for line in diff.gated if line.change is not None} == {0.0}
    assert diff.exit_code == 0


def side(**change: Any) -> Side:
    return made_up_side("side", [made_up_run(change=change, mean_ttft_ms=1.0)])


CHANGES: Mapping[str, tuple[dict[str, Any], str]] = {
    "model": ({"model": MODEL | {"dtype": "float16"}}, "model.dtype: bfloat16 against float16"),
    "device": ({"device": DEVICE | {"name": "Other GPU"}}, "device.name: Toy GPU against Other GPU"),
    "workload": ({"workload": WORKLOAD | {"arrival": "constant"}}, "workload.arrival: poisson against constant"),
    "rate": ({"rate": None}, "rate: 6 against none"),
    "load": ({"load": {"window_s": 60.0}}, "load.window_s: 12 against 60"),
    "slo": ({"slo": "p95_ttft=1s"}, "SLO: none against p95_ttft=1s"),
    "simulated": ({"simulated": True}, "simulated: false against true"),
}


@pytest.mark.parametrize("part", ALLOWED)
def test_each_part_that_differs_is_refused_by_name_unless_allowed(part: str) -> None:
    change, naming = CHANGES[part]
    found = differences(side(), side(**change))
    with pytest.raises(UserError) as refused:
        require_comparable(found)
    assert naming in str(refused.value)
    assert f"--allow {part}" in str(refused.value)
    require_comparable(found, [part])
    require_comparable(found, ["all"])


def test_another_kv_cache_is_another_model() -> None:
    found = differences(side(), side(model=MODEL | {"kv_cache_dtype": "fp8"}))
    with pytest.raises(UserError, match=r"model.kv_cache_dtype: none against fp8.*--allow model"):
        require_comparable(found)


def test_another_router_is_another_device() -> None:
    pair = [side(device=DEVICE | {"data_parallel_size": 2, "router": name}) for name in ("round_robin", "least_kv")]
    with pytest.raises(UserError, match=r"device.router: round_robin against least_kv.*--allow device"):
        require_comparable(differences(*pair))
    with pytest.raises(UserError, match=r"device.data_parallel_size: none against 2"):
        require_comparable(differences(side(), pair[0]))


def test_every_difference_is_named_at_once() -> None:
    change = CHANGES["model"][0] | CHANGES["rate"][0]
    with pytest.raises(UserError, match=r"model.dtype.*rate.*--allow model,rate"):
        require_comparable(differences(side(), side(**change)), ["slo"])


def test_an_unknown_part_to_allow_is_refused() -> None:
    with pytest.raises(UserError, match="'colour'"):
        require_comparable(differences(side(), side()), ["colour"])


def test_the_machine_counts_only_where_a_real_device_ran() -> None:
    other = {"environment": ENVIRONMENT | {"cpu": "Other CPU"}}
    assert [d.what for d in differences(side(), side(**other)).refused] == ["machine.cpu"]
    simulated = {"simulated": True}
    assert differences(side(**simulated), side(**simulated, **other)).refused == ()


def test_settings_and_versions_are_listed_and_never_refused() -> None:
    change = {"settings": {"max_num_seqs": 8}, "environment": ENVIRONMENT | {"git_commit": "fffffff"}}
    found = differences(side(settings={"max_num_seqs": 4}), side(**change))
    assert [str(d) for d in found.settings] == ["max_num_seqs: 4 against 8"]
    assert [d.what for d in found.environment] == ["git_commit"]
    require_comparable(found)
