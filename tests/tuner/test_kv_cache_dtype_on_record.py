"""The type of the KV cache goes with a run: to its record and report, its baseline, and what may be learnt from it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import UserError
from reports.build import write_reports
from tests.tuner.kept_runs import LOAD, OPTIONS, SEATS, SLO, SPEC
from tuner.arguments import TuneArguments
from tuner.baseline.record import options_of
from tuner.earlier import why_not
from tuner.targets.bundled import BundledTarget
from tuner.twin.fit import learn_device
from workloads.records import RunRecord, write_run


def measure(folder: Path, kv_cache_dtype: str) -> RunRecord:
    options = replace(OPTIONS, kv_cache_dtype=kv_cache_dtype)
    measured = BundledTarget(options, SPEC, SEATS).measure(SEATS, LOAD, SLO, stop_when_settled=False)
    return RunRecord.load(write_run(folder, measured.meta, measured.requests, measured.iterations))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, RunRecord]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: measure(folder / name, name) for name in ("auto", "bfloat16", "fp8")}


def test_a_run_says_so_where_it_is_not_the_models_type(runs: Mapping[str, RunRecord]) -> None:
    assert {name: run.meta["model"].get("kv_cache_dtype") for name, run in runs.items()} == {
        "auto": None, "bfloat16": None, "fp8": "fp8",
    }  # fmt: skip
    blocks = {name: run.meta["memory"]["num_blocks"] for name, run in runs.items()}
    assert blocks["bfloat16"] == blocks["auto"] == blocks["fp8"] // 2
    reports = [file.read_text(encoding="utf-8") for file in write_reports(runs["fp8"].path)]
    assert all("bfloat16, KV cache in fp8" in report for report in reports)


def test_the_same_engine_is_loaded_again_from_the_record(runs: Mapping[str, RunRecord]) -> None:
    assert options_of(runs["fp8"].meta).kv_cache_dtype == "fp8"
    assert options_of(runs["auto"].meta).kv_cache_dtype == "auto"
    assert TuneArguments(kv_cache_dtype="fp8").target_options().kv_cache_dtype == "fp8"


def test_a_study_of_another_cache_is_no_warm_start(runs: Mapping[str, RunRecord]) -> None:
    usual, other = (run.meta | {"options": {}} for run in (runs["auto"], runs["fp8"]))
    assert why_not(other, usual) == "its model has kv_cache_dtype fp8, the one here None"
    assert why_not(other, other) is None


def test_runs_of_different_caches_teach_no_device_together(runs: Mapping[str, RunRecord]) -> None:
    assert learn_device([runs["fp8"]]).kv_cache_dtype == "fp8"
    assert learn_device([runs["auto"]]).kv_cache_dtype is None
    with pytest.raises(UserError, match=r"different models \(.*bfloat16, .*bfloat16, KV cache in fp8\)"):
        learn_device([runs["auto"], runs["fp8"]])
