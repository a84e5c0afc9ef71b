"""Whole studies on a simulated card: what they leave, what they print, and that they repeat."""

import itertools
import json
import os
import shlex
import shutil
import signal
from pathlib import Path

import pytest

from engine.executor.base import StepResult
from engine.executor.simulated import SimulatedExecutor
from engine.scheduler.plan import StepPlan
from tests.tuner.small_studies import (
    ENGINE,
    FEW_SEATS,
    LOAD,
    SLO,
    SMALL,
    TPE,
    Outcome,
    Tune,
    files_in,
    measured_twice,
    read_json,
    stored_runs,
    study_in,
)
from workloads.records import RunRecord

WholeStudy = tuple[Path, Outcome]


def test_a_whole_study_leaves_everything_it_promises(whole_study: WholeStudy) -> None:
    folder, outcome = whole_study
    assert outcome.code == 0, outcome.err
    assert {p.name for p in folder.iterdir()} == {
        "study.json", "study.db", "best.json", "report.html", "report.md", "runs",
    }  # fmt: skip
    study = study_in(folder)
    assert (study["state"], study["reason"], study["simulated"]) == ("complete", None, True)
    assert study["elapsed_s"] > 0


def test_every_run_is_listed_and_every_listed_run_is_there(whole_study: WholeStudy) -> None:
    folder, _ = whole_study
    study = study_in(folder)
    listed = {run["path"] for trial in study["trials"] for run in trial["runs"]}
    listed |= {path for label in ("baseline", "winner") for path in study["confirmation"][label]["runs"]}
    stored = {f"runs/{name}" for name in stored_runs(folder)}
    assert listed <= stored
    # A default that was measured at a rate it cannot hold is measured again at its own; those runs only have led there.
    assert all("confirm-default" in path for path in stored - listed)
    for path in listed:
        assert {p.name for p in (folder / path).iterdir()} == {"run.json", "requests.parquet", "iterations.parquet"}
    assert measured_twice(folder) == []


def test_trials_start_with_the_baseline_and_hold_no_setting_twice(whole_study: WholeStudy) -> None:
    trials = study_in(whole_study[0])["trials"]
    assert [t["number"] for t in trials] == list(range(len(trials)))
    assert [t["kind"] for t in trials] == ["baseline", "search", "search"]
    assert trials[0]["settings"]["max_num_seqs"] == 4
    settings = [json.dumps(t["settings"], sort_keys=True) for t in trials]
    assert len(set(settings)) == len(settings)
    for trial in trials:
        assert trial["settings"]["chunk_size"] < trial["settings"]["max_num_batched_tokens"]
        assert trial["settings"]["max_num_seqs"] <= trial["settings"]["max_num_batched_tokens"]


def test_a_trials_rate_is_the_highest_that_it_held(whole_study: WholeStudy) -> None:
    folder, _ = whole_study
    for trial in study_in(folder)["trials"]:
        metas = [read_json(folder / run["path"] / "run.json") for run in trial["runs"]]
        assert all(meta["settings"] == trial["settings"] for meta in metas)
        met = [
            meta["rate"]
            for meta in metas
            if meta["stopped_early"] is None
            and all(b["met_share"] >= b["required_share"] for b in meta["verdict"]["bounds"])
        ]
        assert trial["rate"] == max(met, default=None)
        assert trial["state"] == ("complete" if met else "infeasible")
        assert (trial["constraint"] <= 0) is bool(met)


def test_the_recommendation_is_the_confirmed_winner(whole_study: WholeStudy) -> None:
    folder, _ = whole_study
    study, best = study_in(folder), read_json(folder / "best.json")
    confirmation = study["confirmation"]
    assert confirmation["verdict"] == "better"
    assert 0 < confirmation["gain_low"] <= confirmation["gain"] <= confirmation["gain_high"]
    assert best["settings"] == study["best"]["settings"] == confirmation["winner"]["settings"]
    assert best["rate"] == study["best"]["rate"] == confirmation["winner"]["rate"]
    assert best["is_default"] is study["best"]["is_default"] is False
    assert best["confirmation"] == confirmation
    assert best["settings"] == study["trials"][study["best"]["trial"]]["settings"]
    assert confirmation["baseline"]["settings"] == study["trials"][0]["settings"]


def test_confirmation_runs_have_seeds_that_the_search_never_used(whole_study: WholeStudy) -> None:
    seeds: dict[bool, set[int]] = {True: set(), False: set()}
    for name, meta in stored_runs(whole_study[0]).items():
        seeds["confirm" in name].add(meta["seed"])
    assert seeds[False] == {1}
    assert len(seeds[True]) >= 2
    assert seeds[True].isdisjoint(seeds[False])


def test_json_is_one_object_and_alone_on_standard_output(whole_study: WholeStudy) -> None:
    folder, outcome = whole_study
    printed = json.loads(outcome.out)
    assert printed == read_json(folder / "best.json") | {"folder": str(folder), "report": str(folder / "report.html")}
    assert "baseline at" in outcome.err


def test_the_record_repeats_its_command_line(whole_study: WholeStudy) -> None:
    folder, _ = whole_study
    command = shlex.split(study_in(folder)["command"])
    assert command[0] == "tune"
    assert command[1 : 1 + len(SMALL)] == list(SMALL)


@pytest.mark.usefixtures("no_reports")
def test_equal_arguments_give_equal_runs_byte_for_byte(tune: Tune, tmp_path: Path) -> None:
    arguments = (*SMALL, *FEW_SEATS, "--rate", "6", "--trials", "2")
    assert tune(*arguments, "--out", "one").code == 0
    # What ran in between must leave no trace in what is measured.
    assert tune("bench", *SMALL, "--rate", "2", "--seed", "9").code == 0
    assert tune(*arguments, "--out", "two").code == 0
    one, two = (
        {name: data for name, data in files_in(tmp_path / folder / "runs").items() if name.endswith(".parquet")}
        for folder in ("one", "two")
    )
    assert one == two
    assert len(one) == 2 * len(stored_runs(tmp_path / "one"))


@pytest.mark.usefixtures("no_reports")
def test_a_fixed_rate_is_the_only_one_measured(tune: Tune, tmp_path: Path) -> None:
    outcome = tune(*SMALL, *TPE, "--rate", "4", "--trials", "2", "--out", "s", "--set", "chunk_size=off")
    assert outcome.code == 0, outcome.err
    study = study_in(tmp_path / "s")
    assert {meta["rate"] for meta in stored_runs(tmp_path / "s").values()} == {4.0}
    assert study["options"]["rate"] == 4.0
    assert "burst_rate" not in study
    assert [t["settings"]["chunk_size"] for t in study["trials"]] == [0, 0, 0]


@pytest.mark.usefixtures("no_reports")
def test_a_closed_loop_has_no_rate_and_goodput_takes_several_values(tune: Tune, tmp_path: Path) -> None:
    slo = ("--goodput", "ttft:1000", "tpot:120")
    arguments = (*ENGINE, *LOAD, "--arrival", "closed:concurrency=8", *slo, "--trials", "1", "--out", "s")
    outcome = tune(*arguments)
    assert outcome.code == 0, outcome.err
    study, runs = study_in(tmp_path / "s"), stored_runs(tmp_path / "s")
    assert study["slo"] == "p95_ttft=1s,p95_tpot=120ms"
    assert {meta["rate"] for meta in runs.values()} == {None}
    for name in runs:
        steps = RunRecord.load(tmp_path / "s" / "runs" / name).iteration_records()
        assert max(step.running + step.waiting for step in steps) == 8
    assert study["best"]["rate"] is None


def test_at_one_load_a_setting_that_is_behind_the_best_is_dropped(tune: Tune, tmp_path: Path) -> None:
    # A loose objective that all hold leaves it to the goodput, and few seats serve fewer requests.
    load = ("--arrival", "closed:concurrency=24", "--slo", "p50_e2e=20s")
    few = ("--set", "max_num_seqs=24", "--search", "max_num_seqs=4,6")
    outcome = tune(*ENGINE, *LOAD, *load, *few, "--trials", "2", "--out", "s")
    assert outcome.code == 0, outcome.err
    study = study_in(tmp_path / "s")
    dropped = [t for t in study["trials"] if t["state"] == "behind"]
    assert dropped
    for trial in dropped:
        assert [run["stopped_early"] for run in trial["runs"]] == ["behind the best so far"]
        assert (trial["rate"], trial["error"]) == (None, None)
    assert study["best"]["is_default"]
    assert "behind the best so far" in (tmp_path / "s" / "report.md").read_text()


@pytest.mark.usefixtures("no_reports")
def test_search_and_set_decide_what_varies(tune: Tune, tmp_path: Path) -> None:
    fixed = ("--set", "gpu_memory_utilization=0.9", "--set", "max_num_seqs=64", "--set", "chunk_size=off")
    outcome = tune(*SMALL, *TPE, *fixed, "--search", "max_num_batched_tokens=512,1024", "--rate", "4", "--trials", "9",
                   "--out", "s")  # fmt: skip
    assert outcome.code == 0, outcome.err
    study = study_in(tmp_path / "s")
    assert study["options"]["space"] == {"max_num_batched_tokens": [512, 1024]}
    # The default and both choices: then the space is used up, whatever number of trials was allowed.
    assert sorted(t["settings"]["max_num_batched_tokens"] for t in study["trials"]) == [512, 1024, 2048]
    assert {t["settings"]["max_num_seqs"] for t in study["trials"]} == {64}
    assert "used up" in outcome.err


def test_an_objective_that_nothing_meets_exits_1_and_says_so(tune: Tune, tmp_path: Path) -> None:
    outcome = tune(*ENGINE, *LOAD, "--slo", "p95_ttft=1us", "--trials", "1", "--out", "s")
    assert outcome.code == 1
    study = study_in(tmp_path / "s")
    assert study["state"] == "complete"
    assert study["best"] is None
    assert {t["state"] for t in study["trials"]} == {"infeasible"}
    assert study["confirmation"]["verdict"] == "skipped"
    assert read_json(tmp_path / "s" / "best.json")["settings"] is None
    said = "no setting that was tried meets p95_ttft=1us"
    assert said in " ".join((tmp_path / "s" / "report.md").read_text().split()).lower()


def test_report_writes_the_same_reports_again(tune: Tune, tmp_path: Path, whole_study: WholeStudy) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(whole_study[0], copy)
    markdown = (copy / "report.md").read_text()
    for name in ("report.md", "report.html"):
        (copy / name).unlink()
    outcome = tune("report", str(copy))
    assert outcome.code == 0
    assert str(copy / "report.html") in outcome.out
    assert (copy / "report.html").stat().st_size > 100_000
    assert (copy / "report.md").read_text() == markdown


@pytest.mark.usefixtures("no_reports")
def test_default_folder_is_new_each_time(tune: Tune, tmp_path: Path) -> None:
    for _ in range(2):
        assert tune("bench", *SMALL, "--rate", "4", "--window", "5s").code == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_an_interrupted_bench_keeps_what_it_measured(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, steps = SimulatedExecutor.execute, itertools.count()

    def execute_then_interrupt(executor: SimulatedExecutor, plan: StepPlan) -> StepResult:
        if next(steps) == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return execute(executor, plan)

    monkeypatch.setattr(SimulatedExecutor, "execute", execute_then_interrupt)
    assert tune("bench", *SMALL, "--rate", "4", "--out", "b").code == 130
    meta = read_json(tmp_path / "b" / "run.json")
    assert meta["stopped_early"] == "interrupted"
    assert meta["validity"]["valid"] is False
    assert (tmp_path / "b" / "report.html").is_file()
    assert RunRecord.load(tmp_path / "b").iteration_records()


@pytest.mark.parametrize("slo", [SLO, ()], ids=["with objective", "without"])
def test_bench_measures_one_setting_once(tune: Tune, tmp_path: Path, slo: tuple[str, ...]) -> None:
    outcome = tune("bench", *ENGINE, *LOAD, *slo, "--rate", "4", "--set", "max_num_seqs=6", "--out", "b", "--json")
    assert outcome.code == 0, outcome.err
    meta = read_json(tmp_path / "b" / "run.json")
    assert json.loads(outcome.out) == meta | {"folder": "b", "report": "b/report.html"}
    assert meta["settings"]["max_num_seqs"] == 6
    assert (meta["verdict"] is None) is (not slo)
    assert {p.name for p in (tmp_path / "b").iterdir()} == {
        "run.json", "requests.parquet", "iterations.parquet", "report.html", "report.md",
    }  # fmt: skip
