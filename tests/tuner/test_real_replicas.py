"""Replicas on the CPU as something to measure: what a run says of them, what a twin learns, how a loss is mended."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.errors import KVCacheTooSmall
from engine.parallel.process_replicas import ProcessReplicas
from engine.parallel.replicas import ReplicatedEngine
from reports.build import write_reports
from tests.engine.wide_model import wide_model
from tuner.baseline.record import options_of
from tuner.settings import Settings
from tuner.targets.bundled import BundledTarget, Load, Measured, TargetOptions
from tuner.twin.accuracy import replay
from tuner.twin.fit import learn_device
from tuner.twin.twin import Twin
from workloads.driver import Progress
from workloads.records import RunRecord, write_run
from workloads.slo import parse_slo
from workloads.spec import spec_from_dict

SPEC = spec_from_dict({"name": "short", "prompt_tokens": "uniform:16..64", "output_tokens": "uniform:8..24"})
SETTINGS = Settings(max_num_seqs=8, max_num_batched_tokens=128)
LOAD = Load(rate=20.0, seed=3, warmup_s=0.5, window_s=2.0)
SLO = parse_slo(["p95_ttft=10s"])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BundledTarget]:
    source = wide_model(tmp_path_factory.mktemp("qwen2"))
    options = TargetOptions(source.name, "cpu", device_memory_bytes=1 << 30, data_parallel_size=2, router="least_kv")
    target = BundledTarget(options, SPEC, SETTINGS)
    yield target
    target.executor.shutdown()


@pytest.fixture(scope="module")
def measured(target: BundledTarget) -> Measured:
    return target.measure(SETTINGS, LOAD, SLO, stop_when_settled=False)


@pytest.fixture(scope="module")
def run(measured: Measured, tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return RunRecord.load(write_run(folder, measured.meta, measured.requests, measured.iterations))


def test_a_run_says_what_it_ran_on_and_which_replica_did_what(run: RunRecord, measured: Measured) -> None:
    assert measured.error is None
    device, memory = run.meta["device"], run.meta["memory"]
    assert device["name"].startswith("2 x CPU (")
    assert (device["kind"], device["data_parallel_size"], device["router"]) == ("cpu", 2, "least_kv")
    assert device["threads"] == max(1, torch.get_num_threads() // 2)
    assert (device["memory_bytes"], memory["total_bytes"]) == (1 << 30, 1 << 30)  # one replica's
    assert run.meta["simulated"] is False
    assert set(run.requests["replica"]) == set(run.iterations["replica"]) == {0, 1}
    assert {request.status for request in measured.requests if request.phase == "window"} == {"ok"}
    assert options_of(run.meta).several_devices() == {"data_parallel_size": 2, "router": "least_kv"}
    assert all(file.stat().st_size for file in write_reports(run.path))


def test_a_burst_is_served_by_all_replicas(target: BundledTarget) -> None:
    rate, served_s = target.burst(SETTINGS, 16, seed=1)
    assert rate > 0
    assert served_s > 0
    assert not target.engine.has_work


def test_settings_that_do_not_fit_are_refused_as_by_one_engine(target: BundledTarget) -> None:
    with pytest.raises(KVCacheTooSmall):
        target.measure(Settings(gpu_memory_utilization=0.0001), LOAD, SLO)
    assert target.smallest_utilization(SETTINGS, 128) < 0.9
    assert target.max_resident_requests(SETTINGS, 0.9) > 8


def test_the_twin_plays_as_many_replicas_behind_the_same_router(
    target: BundledTarget, run: RunRecord, tmp_path: Path
) -> None:
    file = tmp_path / "twin.json"
    file.write_text(learn_device([run]).to_json())
    twin = Twin(file, target, SLO, LOAD, SETTINGS)
    assert isinstance(twin._target.engine, ReplicatedEngine)
    assert len(twin._target.engine._replicas) == 2
    assert twin._target.options.router == "least_kv"
    played = twin.play(SETTINGS, 20.0)
    assert played is not None
    assert played.held
    predicted = replay(f"sim:{file}", [run])[0].predicted["output tokens/s"]
    assert predicted == pytest.approx(run.meta["summary"]["output_throughput"], rel=0.2)


def test_a_replica_that_dies_in_a_run_ends_that_run_alone(target: BundledTarget) -> None:
    first = target.engine
    assert isinstance(first, ProcessReplicas)
    children = [member.child.process for member in first._group.members]

    def kill(progress: Progress) -> None:
        if progress.ended > 4:
            os.kill(children[1].pid, signal.SIGKILL)

    broken = target.measure(SETTINGS, LOAD, SLO, on_progress=kill)
    assert broken.error is not None
    assert "replica 1" in broken.error
    assert "died: killed by SIGKILL" in broken.error
    assert target.engine is not first
    assert not any(child.is_alive() for child in children)
    again = target.measure(SETTINGS, LOAD, SLO, stop_when_settled=False)
    assert again.error is None
    assert {request.replica for request in again.requests} == {0, 1}


def test_a_replica_that_died_between_two_runs_costs_neither(target: BundledTarget) -> None:
    engine = target.engine
    assert isinstance(engine, ProcessReplicas)
    child = engine._group.members[0].child.process
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert target.measure(SETTINGS, LOAD, SLO).error is None
    assert target.engine is not engine
