"""A run's folder is written whole, reads back as it was, and says what is wrong with a damaged one."""

import json
from dataclasses import fields
from typing import Any

import pyarrow.parquet as pq
import pytest

from engine.errors import UserError
from engine.request import RequestEvent
from engine.trace import IterationRecord
from workloads.records import SCHEMA_VERSION, RunRecord, write_atomic, write_run

META = {"schema_version": SCHEMA_VERSION, "kind": "run", "rate": 2.0, "slo": None, "name": "größe"}


@pytest.fixture
def requests(make_record):
    history = (RequestEvent(1, "queued", 10), RequestEvent(9, "finished", 2, 1, "length"))
    refused = make_record([], index=1, status="refused", error="too long", t_send=None, t_admit=None, t_end=None)
    swapped: dict[str, Any] = {
        "preemptions": 2,
        "preemptions_swap": 1,
        "priority": -1,
        "class_name": "größe",
        "attempts": 3,
    }
    return [make_record(history=history, good=True), refused, make_record(index=2, **swapped)]


@pytest.fixture
def iterations():
    values: dict[str, Any] = {f.name: i for i, f in enumerate(fields(IterationRecord))}
    values |= {"device_time_ns": None, "wait_cause": "blocks", "blocked_request": "req-7"}
    nobody_waits: dict[str, Any] = {"wait_cause": None, "blocked_request": None}
    return [IterationRecord(**values), IterationRecord(**values | nobody_waits)]


def test_a_run_reads_back_as_it_was_written(tmp_path, requests, iterations):
    run = RunRecord.load(write_run(tmp_path / "a", META, requests, iterations))
    assert run.meta == META
    assert run.request_records() == requests
    assert run.iteration_records() == iterations


def test_the_tables_are_data_frames_with_null_for_what_was_not_measured(tmp_path, requests, iterations):
    run = RunRecord.load(write_run(tmp_path / "a", META, requests, iterations))
    assert run.requests["t_first"].isna().tolist() == [False, True, False]
    assert run.iterations["wait_cause"].isna().tolist() == [False, True]
    assert run.iterations["blocked_request"][0] == "req-7"
    assert json.loads(run.requests["history"][0])[1] == [9, "finished", 2, 1, "length"]
    assert run.iterations["device_time_ns"].isna().all()


def test_a_run_without_requests_or_steps_reads_back_empty(tmp_path):
    run = RunRecord.load(write_run(tmp_path / "a", META, [], []))
    assert run.request_records() == []
    assert len(run.iterations) == 0


def test_text_that_no_step_has_reads_back_as_text_that_is_missing(tmp_path, iterations):
    nobody_waits = iterations[1:]
    run = RunRecord.load(write_run(tmp_path / "a", META, [], nobody_waits))
    assert run.iteration_records() == nobody_waits
    assert run.iterations["blocked_request"].isna().all()


def test_equal_runs_are_equal_byte_for_byte(tmp_path, requests, iterations):
    one = write_run(tmp_path / "a", META, requests, iterations)
    two = write_run(tmp_path / "b", META, requests, iterations)
    names = sorted(f.name for f in one.iterdir())
    assert names == ["iterations.parquet", "requests.parquet", "run.json"]
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)


def test_a_run_is_never_written_over_another(tmp_path, requests, iterations):
    write_run(tmp_path / "a", META, requests, iterations)
    with pytest.raises(UserError, match="exists already"):
        write_run(tmp_path / "a", META, [], [])


def test_a_run_that_cannot_be_written_leaves_nothing(tmp_path, requests, iterations):
    with pytest.raises(ValueError):
        write_run(tmp_path / "a", META | {"rate": float("nan")}, requests, iterations)
    not_a_record: Any = None
    with pytest.raises(AttributeError):
        write_run(tmp_path / "a", META, [not_a_record], iterations)
    assert list(tmp_path.iterdir()) == []


def test_an_atomic_write_replaces_the_file_and_leaves_no_other(tmp_path):
    write_atomic(tmp_path / "f", "one")
    write_atomic(tmp_path / "f", b"two")
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"two"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "run.json").unlink(), "run.json does not exist"),
        (lambda run: (run / "run.json").write_text("{"), "run.json is damaged"),
        (lambda run: (run / "run.json").write_text("[]"), "run.json is damaged"),
        (lambda run: (run / "run.json").write_bytes(b"\xff\xfe"), "run.json is damaged"),
        (lambda run: (run / "run.json").write_text('{"schema_version": 1, "kind": "run"}'), "schema_version 1"),
        (lambda run: (run / "run.json").write_text('{"schema_version": 2, "kind": "study"}'), "kind 'study'"),
        (lambda run: (run / "requests.parquet").unlink(), "requests.parquet is missing"),
        (lambda run: (run / "requests.parquet").write_bytes(b"no"), "requests.parquet is damaged"),
        (lambda run: (run / "iterations.parquet").replace(run / "requests.parquet"), "is missing|lacks the columns"),
    ],
)
def test_a_damaged_run_is_an_error_that_names_the_file(tmp_path, requests, iterations, damage, message):
    folder = write_run(tmp_path / "a", META, requests, iterations)
    damage(folder)
    with pytest.raises(UserError, match=message):
        RunRecord.load(folder).request_records()


def test_a_table_of_another_kind_is_an_error_that_names_its_columns(tmp_path, requests, iterations):
    folder = write_run(tmp_path / "a", META, requests, iterations)
    (folder / "requests.parquet").write_bytes((folder / "iterations.parquet").read_bytes())
    with pytest.raises(UserError, match=r"requests.parquet is damaged: it lacks the columns index"):
        _ = RunRecord.load(folder).requests


def test_columns_that_earlier_versions_did_not_write_are_what_is_true_of_their_runs(tmp_path, requests, iterations):
    folder = write_run(tmp_path / "a", META, requests, iterations)
    for name, absent in (("requests.parquet", ["replica"]), ("iterations.parquet", ["replica", "wasted_rows"])):
        pq.write_table(pq.ParquetFile(folder / name).read().drop_columns(absent), folder / name)
    run = RunRecord.load(folder)
    assert [request.replica for request in run.request_records()] == [None] * len(requests)
    assert [(step.replica, step.wasted_rows) for step in run.iteration_records()] == [(None, 0)] * len(iterations)
