"""Replicas behind a router as something to measure: which policy helps when, what records say, and what is refused."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.errors import UserError
from reports.build import write_reports
from reports.replicas_view import replicas_table
from tuner.arguments import TuneArguments
from tuner.baseline.record import options_of
from tuner.cli.profile import run_profile
from tuner.settings import Settings
from tuner.targets.bundled import BundledTarget, Load, Measured, TargetOptions
from workloads.records import RunRecord, write_run
from workloads.slo import parse_slo
from workloads.spec import load_spec, spec_from_dict
from workloads.waits import wait_times

MODEL, CARD = "random:llama-3.1-8b", "sim:l4"
UNEVEN = ["prompt_tokens=uniform:16..512", "output_tokens=lognormal:median=100,sigma=1.3,low=4,high=2000"]


def options(router: str = "least_in_flight", replicas: int = 4) -> TargetOptions:
    return TargetOptions(MODEL, CARD, data_parallel_size=replicas, router=router)


def measure(router: str, overrides: Sequence[str], rate: float, seed: int, prefixes: int = 0) -> Measured:
    spec = load_spec("chat", overrides)
    if prefixes:
        shared = {"share": 1.0, "tokens": "uniform:400..800", "count": prefixes}
        spec = spec_from_dict(spec.to_dict() | {"shared_prefix": shared})
    settings = Settings(max_num_seqs=8)
    target = BundledTarget(options(router), spec, settings)
    return target.measure(settings, Load(rate, seed, 20, 60), parse_slo(["p95_ttft=1s"]), stop_when_settled=False)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_least_in_flight_is_ahead_of_round_robin_in_p95_ttft_where_lengths_are_uneven(seed: int) -> None:
    in_turn, least = (
        measure(router, UNEVEN, 2.0, seed).meta["summary"] for router in ("round_robin", "least_in_flight")
    )
    assert least["p95_ttft_ms"] < 0.6 * in_turn["p95_ttft_ms"]


def test_prefix_affinity_is_ahead_in_cache_hits_where_prompts_begin_alike() -> None:
    overrides = ["prompt_tokens=uniform:900..1200", "output_tokens=uniform:20..60"]
    hits = {
        router: sum(request.cached_tokens for request in measure(router, overrides, 4.0, 1, prefixes=32).requests)
        for router in ("round_robin", "least_in_flight", "prefix_affinity")
    }
    assert hits["prefix_affinity"] > 1.3 * max(hits["round_robin"], hits["least_in_flight"])


def test_a_run_says_which_replica_did_what_and_how_many_there_were(tmp_path: Path) -> None:
    measured = measure("round_robin", UNEVEN, 2.0, 1)
    folder = write_run(tmp_path / "run", measured.meta, measured.requests, measured.iterations)
    run = RunRecord.load(folder)
    assert run.request_records() == measured.requests
    assert set(run.requests["replica"]) == set(run.iterations["replica"]) == {0, 1, 2, 3}
    assert [r.replica for r in measured.requests] == [i % 4 for i in range(len(measured.requests))]
    assert 0 < run.meta["summary"]["mean_kv_utilization"] < run.meta["summary"]["max_kv_utilization"] <= 1
    assert 0 < run.meta["summary"]["device_idle_share"] < 1
    assert run.meta["device"]["data_parallel_size"] == 4
    assert run.meta["device"]["router"] == "round_robin"
    assert options_of(run.meta).data_parallel_size == 4
    assert all(file.stat().st_size for file in write_reports(folder))


def test_the_report_of_a_run_has_a_table_of_its_replicas_whose_parts_add_up(tmp_path: Path) -> None:
    measured = measure("least_in_flight", UNEVEN, 2.0, 1)
    run = RunRecord.load(write_run(tmp_path / "run", measured.meta, measured.requests, measured.iterations))
    table = replicas_table(run)
    assert table is not None
    assert table.headers == ("By replica", "0", "1", "2", "3")
    rows = {name: values for name, *values in table.rows}
    summary = run.meta["summary"]
    assert sum(map(int, rows["Requests"])) == run.meta["window"]["requests"]
    assert sum(map(int, rows["Good requests"])) == summary["good_requests"]
    assert sum(float(text.split()[0]) for text in rows["Output tokens"]) == pytest.approx(
        summary["output_throughput"], rel=0.01
    )
    idle = [float(text.removesuffix("%")) for text in rows["Device idle"]]
    assert sum(idle) / 4 == pytest.approx(100 * summary["device_idle_share"], abs=0.1)
    assert any("By replica" in file.read_text(encoding="utf-8") for file in write_reports(run.path))


def test_a_run_of_one_engine_has_no_such_table(tmp_path: Path) -> None:
    measured = BundledTarget(TargetOptions(MODEL, CARD), load_spec("chat", UNEVEN), Settings()).measure(
        Settings(), Load(0.5, 1, 2, 10), None
    )
    run = RunRecord.load(write_run(tmp_path / "run", measured.meta, measured.requests, measured.iterations))
    assert replicas_table(run) is None


def test_waits_add_up_to_the_time_until_admission_on_each_replica() -> None:
    measured = measure("least_in_flight", UNEVEN, 3.0, 1)
    admitted = [request for request in measured.requests if request.t_admit is not None]
    waits = wait_times(admitted, measured.iterations)
    until_admission = (waits.by_cause.sum(axis=1) - waits.after_preemption).tolist()
    assert until_admission == [r.t_admit - r.t_sched for r in admitted if r.t_admit is not None]
    assert {request.replica for request in admitted} == {0, 1, 2, 3}


def test_a_run_is_the_same_every_time_and_under_one_replica_that_of_an_engine() -> None:
    spec, settings = load_spec("chat", UNEVEN), Settings(max_num_seqs=8)
    load = Load(1.0, 3, 5, 20)
    two = BundledTarget(options(replicas=2), spec, settings)
    first, second = (two.measure(settings, load, None) for _ in range(2))
    assert (first.requests, first.iterations) == (second.requests, second.iterations)
    assert {request.replica for request in first.requests} == {0, 1}
    alone = BundledTarget(TargetOptions(MODEL, CARD), spec, settings).measure(settings, load, None)
    assert {request.replica for request in alone.requests} == {None}
    assert "data_parallel_size" not in alone.meta["device"]


def test_a_burst_is_served_by_all_replicas() -> None:
    spec, settings = load_spec("chat", ["output_tokens=64"]), Settings(max_num_seqs=8)
    one, four = (BundledTarget(options(replicas=n), spec, settings).burst(settings, 64, 1)[0] for n in (1, 4))
    assert 2 * one < four < 6 * one


@pytest.mark.parametrize("device", ["cpu", "cuda", "auto", CARD])
def test_replicas_of_a_model_that_is_split_are_refused(device: str) -> None:
    with pytest.raises(UserError, match="data_parallel_size=2 is not possible together with tensor_parallel_size=4"):
        TuneArguments(device=device, data_parallel_size=2, tensor_parallel_size=4).target_options()


def test_a_profile_is_of_one_engine() -> None:
    arguments = TuneArguments(device="cpu", data_parallel_size=2)
    with pytest.raises(UserError, match=r"--data-parallel-size 2 is not possible: tune profile looks into"):
        run_profile(arguments, profile_time="3s", out=None)


def test_an_unknown_router_is_refused() -> None:
    with pytest.raises(UserError, match="router 'fastest' does not exist: choose one of round_robin"):
        TuneArguments(device=CARD, router="fastest").target_options()
