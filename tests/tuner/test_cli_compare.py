"""`tune compare`: the same load under every value of one setting, stored run by run."""

import itertools
import json
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from engine.errors import OutOfDeviceMemory
from engine.executor.base import StepResult
from engine.executor.simulated import SimulatedExecutor
from engine.scheduler.plan import StepPlan
from tests.tuner.small_studies import ENGINE, LOAD, SLO, Tune, files_in, read_json, stored_runs
from tuner.arguments import TuneArguments
from tuner.compare import in_turn, parse_comparison, run_comparison
from tuner.settings import Settings
from workloads.records import RunRecord

WITHOUT_SLO = ("compare", *ENGINE, *LOAD, "--rate", "4", "--out", "c")
COMPARE = (*WITHOUT_SLO, *SLO)


def comparison_in(folder: Path) -> dict[str, Any]:
    return read_json(folder / "comparison.json")


def listed(folder: Path) -> list[tuple[Any, int, int]]:
    return [(run["value"], run["repeat"], run["seed"]) for run in comparison_in(folder)["runs"]]


def test_batching_means_all_of_its_values_with_a_delay_for_dynamic(tune: Tune, tmp_path: Path) -> None:
    outcome = tune(*COMPARE, "batching", "--seed", "5")
    assert outcome.code == 0, outcome.err
    record = comparison_in(tmp_path / "c")
    assert (record["option"], record["values"]) == ("batching", ["continuous", "static", "dynamic"])
    assert listed(tmp_path / "c") == [("continuous", 0, 5), ("static", 0, 5), ("dynamic", 0, 5)]
    assert "max_queue_delay=0.1s" in outcome.err
    assert record["settings"] == {n: v for n, v in Settings(max_queue_delay=0.1).to_dict().items() if n != "batching"}
    for run in record["runs"]:
        meta = read_json(tmp_path / "c" / run["path"] / "run.json")
        assert meta["settings"] == record["settings"] | {"batching": run["value"]}
        assert (meta["rate"], meta["seed"], meta["slo"]) == (4.0, 5, record["slo"])
    assert {"report.html", "report.md"} <= {p.name for p in (tmp_path / "c").iterdir()}


def test_every_value_gets_the_same_requests(tune: Tune, tmp_path: Path) -> None:
    assert tune(*COMPARE, "max_num_seqs=2,16").code == 0
    offered = []
    for run in comparison_in(tmp_path / "c")["runs"]:
        requests = RunRecord.load(tmp_path / "c" / run["path"]).request_records()
        window = [r for r in requests if r.phase == "window"]
        offered.append([(r.index, r.t_sched, r.prompt_tokens, r.max_tokens) for r in window])
    assert offered[0] == offered[1]
    assert len(offered[0]) > 10


@pytest.mark.usefixtures("no_reports")
def test_repeats_have_seeds_of_their_own_and_go_back_and_forth(tune: Tune, tmp_path: Path) -> None:
    outcome = tune(*WITHOUT_SLO, "policy=fcfs,sjf,tiered", "--repeats", "2", "--seed", "3", "--json")
    assert outcome.code == 0, outcome.err
    forth, back = [("fcfs", 0, 3), ("sjf", 0, 3), ("tiered", 0, 3)], [("tiered", 1, 4), ("sjf", 1, 4), ("fcfs", 1, 4)]
    assert listed(tmp_path / "c") == forth + back
    assert len(stored_runs(tmp_path / "c")) == 6
    printed = json.loads(outcome.out)
    numbers = ("summary", "classes", "verdict", "validity")
    assert all(run["summary"]["output_throughput"] > 0 for run in printed["runs"])
    printed["runs"] = [{k: v for k, v in run.items() if k not in numbers} for run in printed["runs"]]
    assert printed == comparison_in(tmp_path / "c") | {"folder": "c", "report": "c/report.html"}
    assert printed["slo"] is None
    words = shlex.split(printed["command"])
    assert words[:4] == ["tune", *COMPARE[:3]]
    assert "--out" not in words


def test_the_summary_and_the_report_can_be_made_again(tune: Tune, tmp_path: Path) -> None:
    first = tune(*COMPARE, "policy=fcfs,sjf")
    assert first.code == 0, first.err
    before = files_in(tmp_path / "c")
    again = tune("report", "c")
    assert again.code == 0, again.err
    assert again.out.startswith(first.out.rstrip())
    assert files_in(tmp_path / "c").keys() == before.keys()


@pytest.mark.usefixtures("no_reports")
def test_a_closed_loop_needs_no_rate(tune: Tune, tmp_path: Path) -> None:
    outcome = tune("compare", "chunk_size=off,64", *ENGINE, *LOAD, "--arrival", "closed:4", "--out", "c", "--json")
    assert outcome.code == 0, outcome.err
    record = comparison_in(tmp_path / "c")
    assert (record["rate"], record["values"]) == (None, [0, 64])


def refused(tune: Tune, *arguments: str, naming: str) -> None:
    outcome = tune(*arguments)
    assert outcome.code == 2, outcome
    assert outcome.err.splitlines()[-1].startswith("error: ")
    assert naming in outcome.err.splitlines()[-1]
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("arguments", "naming"),
    [
        (["batch"], "did you mean batching?"),
        (["max_num_seqs"], "max_num_seqs=a,b"),
        (["policy=fcfs"], "at least two"),
        (["policy=fcfs,fcfs"], "at least two"),
        (["policy=fcfs,lifo"], "'lifo'"),
        (["max_num_seqs=0,8"], "max_num_seqs=0"),
        (["policy", "--set", "policy=sjf"], "--set policy"),
        (["max_queue_delay=50ms,200ms"], "batching=continuous"),
        (["aging=1s,5s"], "policy=fcfs"),
        (["chunk_size=4096,8192"], "come to the same"),
        (["policy", "--slo", "p95_ttft=1"], "p95_ttft=1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_comparison_of_nothing_is_refused(tune: Tune, tmp_path: Path, arguments: list[str], naming: str) -> None:
    refused(tune, *WITHOUT_SLO, *arguments, naming=naming)
    assert list(tmp_path.iterdir()) == []


def test_an_open_loop_without_a_rate_is_refused(tune: Tune) -> None:
    refused(tune, "compare", "policy", *ENGINE, *LOAD, naming="--rate")


def test_an_option_that_acts_beside_a_set_one_is_compared() -> None:
    assert parse_comparison("max_queue_delay=50ms,off") == ("max_queue_delay", (0.05, 0.0))


@pytest.mark.usefixtures("no_reports")
def test_values_that_come_to_the_same_are_named(tune: Tune) -> None:
    outcome = tune(*WITHOUT_SLO, "chunk_size=64,off,4096", "--json")
    assert outcome.code == 0, outcome.err
    assert "chunk_size: off and 4096 come to the same" in outcome.err


@pytest.mark.usefixtures("no_reports")
@pytest.mark.parametrize("text", ["0.5,0.9", "0.9,0.5"])
def test_a_value_that_does_not_fit_is_reported_and_the_others_go_on(tune: Tune, tmp_path: Path, text: str) -> None:
    outcome = tune(*WITHOUT_SLO, f"gpu_memory_utilization={text}", "--repeats", "2", "--json")
    assert outcome.code == 1, outcome.err
    assert "gpu_memory_utilization=0.5 failed: " in outcome.err
    record = comparison_in(tmp_path / "c")
    assert [run["value"] for run in record["runs"]] == [0.9, 0.9]
    assert [(f["value"], f["repeat"], f["path"]) for f in record["failures"]] == [(0.5, 0, None)]


SWAP = ("--set", "preemption_mode=swap")


@pytest.mark.usefixtures("no_reports")
def test_swapping_is_compared_with_having_no_space_for_it(tune: Tune, tmp_path: Path) -> None:
    outcome = tune(*WITHOUT_SLO, "swap_space=off,1GiB", *SWAP, "--json")
    assert outcome.code == 0, outcome.err
    assert [run["value"] for run in comparison_in(tmp_path / "c")["runs"]] == [0, 1 << 30]


@pytest.mark.usefixtures("no_reports")
@pytest.mark.parametrize("values", ["1,1GiB", "1GiB,1"])
def test_a_swap_space_for_less_than_a_block_is_reported_and_the_others_go_on(
    tune: Tune, tmp_path: Path, values: str
) -> None:
    outcome = tune(*WITHOUT_SLO, f"swap_space={values}", *SWAP, "--json")
    assert outcome.code == 1, outcome.err
    record = comparison_in(tmp_path / "c")
    assert [run["value"] for run in record["runs"]] == [1 << 30]
    assert [(f["value"], f["path"]) for f in record["failures"]] == [(1, None)]
    assert "holds not one block" in record["failures"][0]["reason"]


def test_no_value_that_fits_is_refused_without_a_folder(tune: Tune, tmp_path: Path) -> None:
    refused(tune, *WITHOUT_SLO, "gpu_memory_utilization=0.4,0.5", naming="gpu_memory_utilization=0.5")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_reports")
def test_a_value_whose_run_breaks_off_is_reported_and_not_among_the_runs(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = SimulatedExecutor.execute

    def failing(self: SimulatedExecutor, plan: StepPlan) -> StepResult:
        if plan.num_running > 4:
            raise OutOfDeviceMemory("no room for that many")
        return execute(self, plan)

    monkeypatch.setattr(SimulatedExecutor, "execute", failing)
    outcome = tune(*WITHOUT_SLO, "max_num_seqs=64,4", "--rate", "8", "--repeats", "2", "--json")
    assert outcome.code == 1, outcome.err
    record = comparison_in(tmp_path / "c")
    assert [run["value"] for run in record["runs"]] == [4, 4]
    (failure,) = record["failures"]
    assert (failure["value"], failure["path"]) == (64, "runs/001-64-1")
    assert "no room for that many" in failure["reason"]
    assert (tmp_path / "c" / failure["path"] / "run.json").is_file()


@pytest.mark.parametrize("interrupted_run", [1, 2])
def test_an_interrupt_keeps_what_was_measured(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted_run: int
) -> None:
    execute, steps, starts = SimulatedExecutor.execute, itertools.count(), itertools.count()
    allocate = SimulatedExecutor.allocate_kv
    runs = {"begun": -1}  # the engine is made before the first

    def begin(self: SimulatedExecutor, *arguments: int) -> None:
        runs["begun"] = next(starts)
        allocate(self, *arguments)

    def interrupting(self: SimulatedExecutor, plan: StepPlan) -> StepResult:
        if runs["begun"] == interrupted_run and next(steps) == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return execute(self, plan)

    monkeypatch.setattr(SimulatedExecutor, "allocate_kv", begin)
    monkeypatch.setattr(SimulatedExecutor, "execute", interrupting)
    outcome = tune(*COMPARE, "policy=fcfs,sjf,tiered")
    assert outcome.code == 130, outcome.err
    assert "interrupted" in outcome.err
    assert [run["value"] for run in comparison_in(tmp_path / "c")["runs"]] == ["fcfs"][: interrupted_run - 1]
    stopped = [read_json(p)["stopped_early"] for p in sorted((tmp_path / "c" / "runs").glob("*/run.json"))]
    assert stopped == [None, "interrupted"][2 - interrupted_run :]
    assert (tmp_path / "c" / "report.md").is_file() is (interrupted_run > 1)


@pytest.mark.usefixtures("no_reports")
def test_a_script_can_compare_without_the_command_line(tmp_path: Path) -> None:
    arguments = TuneArguments(
        workload="chat-small", output_tokens="uniform:4..16", rate="4", model="random:qwen2.5-7b", device="sim:l4",
        set=["max_num_seqs=8"], window="4s", warmup="1s",
    )  # fmt: skip
    compared = run_comparison(arguments, "policy=fcfs,sjf", out=str(tmp_path / "c"))
    assert not compared.interrupted
    assert compared.failures == []
    assert compared.record == comparison_in(compared.folder)
    assert compared.record["settings"]["max_num_seqs"] == 8


def test_values_are_taken_in_turn_so_that_drift_hits_all_alike() -> None:
    order = in_turn("ABC", 3)
    assert "".join(value for value, _ in order) == "ABCCBAABC"
    assert [repeat for _, repeat in order] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
