"""A replica fails, dies or falls silent: the run ends with its name and reason, and no process is left."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config import CacheConfig
from engine.errors import KVCacheTooSmall, ReplicaFailed
from engine.parallel.process_replicas import ProcessReplicas
from engine.parallel.replica_process import ReplicaTask
from tests.engine.outlived import assert_nothing_outlives, either_end
from tests.engine.small_replicas import SOURCE, config_of, load_replicas, request, run_to_end
from workloads.driver import DriveError, Progress, drive
from workloads.plan import make_plan
from workloads.spec import spec_from_dict


def children_of(replicas: ProcessReplicas) -> list[Any]:
    return [member.child.process for member in replicas._group.members]


def task_of(number: int) -> ReplicaTask:
    return ReplicaTask(number, 1 << 30, config_of(), SOURCE, longest_request=2, threads=1)


def test_a_killed_replica_ends_the_run_with_its_name_and_all_can_be_loaded_again() -> None:
    replicas = load_replicas()
    children = children_of(replicas)
    for name in ("a", "b"):
        replicas.add_request(request(name, max_tokens=100))
    replicas.step()
    os.kill(children[1].pid, signal.SIGKILL)
    died = rf"^replica 1 \(process {children[1].pid}\) died: killed by SIGKILL"
    with pytest.raises(ReplicaFailed, match=died):
        run_to_end(replicas)
    calls: list[Any] = [replicas.step, replicas.reset, lambda: replicas.add_request(request("c"))]
    for call in calls:
        with pytest.raises(ReplicaFailed, match=died):
            call()
    assert replicas.abort("a")
    assert replicas.abort("b")
    with pytest.raises(ReplicaFailed, match=died):
        replicas.reconfigure()
    replicas.shutdown()
    assert not any(child.is_alive() for child in children)
    again = load_replicas()
    again.add_request(request("a", max_tokens=3))
    assert len(run_to_end(again)[0]) == 3
    again.shutdown()


def test_a_replica_that_dies_while_it_has_nothing_to_do_is_missed_at_the_next_command() -> None:
    replicas = load_replicas()
    child = children_of(replicas)[0]
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    with pytest.raises(ReplicaFailed, match=rf"replica 0 \(process {child.pid}\) died: killed by SIGKILL"):
        replicas.reconfigure()
    replicas.shutdown()


def test_a_replica_that_is_killed_in_a_run_leaves_what_was_measured_until_then() -> None:
    replicas = load_replicas()
    children = children_of(replicas)
    spec = spec_from_dict({"name": "short", "arrival": "constant", "prompt_tokens": 9, "output_tokens": 4})
    plan = make_plan(spec, rate=40.0, seed=1, vocab_size=211, warmup_s=0.0, window_s=60.0)

    def kill(progress: Progress) -> None:
        if progress.ended > 4:
            os.kill(children[0].pid, signal.SIGKILL)

    with pytest.raises(DriveError, match=r"ReplicaFailed: replica 0 .* died: killed by SIGKILL") as failure:
        drive(replicas, plan, on_progress=kill)
    statuses = [record.status for record in failure.value.partial.requests]
    assert statuses.count("ok") > 4
    assert set(statuses) <= {"ok", "failed"}
    assert not replicas.has_work
    replicas.shutdown()


def test_a_replica_that_fails_by_itself_is_told_with_its_reason() -> None:
    replicas = load_replicas()
    replicas._group.members[1].tell("no_such_command")
    for name in ("a", "b"):
        replicas.add_request(request(name, max_tokens=100))
    with pytest.raises(ReplicaFailed, match=r"^replica 1 failed: AttributeError: 'Replica' object has no attribute"):
        run_to_end(replicas)
    # It goes on: only a reset is needed.
    replicas.reset()
    for name in ("a", "b"):
        replicas.add_request(request(name, max_tokens=3))
    assert len(run_to_end(replicas)[0]) == 6
    replicas.shutdown()


def test_a_replica_that_never_answers_is_ended_after_the_timeout() -> None:
    replicas = ProcessReplicas([task_of(0), task_of(1)], "round_robin", timeout_s=0.2)
    children = children_of(replicas)
    os.kill(children[0].pid, signal.SIGSTOP)
    with pytest.raises(ReplicaFailed, match=r"replica 0 \(process \d+\) did not answer within 0\.2 s"):
        replicas.reset()
    replicas.shutdown()
    assert not any(child.is_alive() for child in children)


def test_a_replica_that_is_silent_in_a_run_is_ended_after_the_timeout() -> None:
    replicas = ProcessReplicas([task_of(0), task_of(1)], "round_robin", timeout_s=1.0)
    os.kill(children_of(replicas)[0].pid, signal.SIGSTOP)
    replicas.add_request(request("a"))
    with pytest.raises(ReplicaFailed, match=r"replica 0 \(process \d+\) did not answer within 1 s"):
        run_to_end(replicas)
    replicas.shutdown()


@contextmanager
def full_pipe() -> Iterator[ProcessReplicas]:
    """Replicas of which one has stopped, with more requests to it than its pipe has room for."""
    replicas = ProcessReplicas([task_of(0), task_of(1)], "round_robin", timeout_s=3.0)
    stopped = children_of(replicas)[0]
    os.kill(stopped.pid, signal.SIGSTOP)
    # Whoever waits for the pipe waits until then, and the test fails.
    watchdog = threading.Timer(60.0, stopped.kill)
    watchdog.start()
    for number in range(1000):
        replicas.add_request(request(str(number), prompt_tokens=150, max_tokens=1))
    try:
        yield replicas
    finally:
        replicas.shutdown()
        watchdog.cancel()


def test_nobody_waits_for_a_replica_that_does_not_read() -> None:
    begin_s = time.monotonic()
    with full_pipe() as replicas:
        children = children_of(replicas)
        with pytest.raises(ReplicaFailed, match=r"replica 0 \(process \d+\) did not answer within 3 s"):
            run_to_end(replicas)
    assert not any(child.is_alive() for child in children)
    assert time.monotonic() - begin_s < 55


def test_a_replica_that_does_not_read_is_ended_by_force() -> None:
    begin_s = time.monotonic()
    with full_pipe() as replicas:
        children = children_of(replicas)
        replicas.shutdown()
        assert not any(child.is_alive() for child in children)
    assert time.monotonic() - begin_s < 55


def test_a_replica_that_cannot_load_is_told_while_another_still_loads() -> None:
    task = task_of(0)
    slow: Any = _Slow()
    poor = replace(task, number=1, config=config_of(cache=CacheConfig(gpu_memory_utilization=0.0001)))
    begin_s = time.monotonic()
    with pytest.raises(KVCacheTooSmall, match=r"^replica 1: "):
        ProcessReplicas([replace(task, source=slow), poor], "round_robin")
    assert time.monotonic() - begin_s < 60


class _Slow:
    """Keeps the process that unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return time.sleep, (100,)


def test_a_replica_that_dies_while_it_loads_ends_the_loading() -> None:
    task = task_of(0)
    # Its model cannot be unpacked there, before it can say anything.
    poison: Any = _Poison()
    broken = replace(task, number=1, source=poison)
    with pytest.raises(ReplicaFailed, match=r"replica 1 \(process \d+\) died: exit code 3"):
        ProcessReplicas([task, broken], "round_robin")


class _Poison:
    """Ends the process that unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (3,)


PROGRAM = """
import os, signal
from tests.engine.small_replicas import load_replicas, request

if __name__ == "__main__":
    replicas = load_replicas()
    replicas.add_request(request("a", max_tokens=100))
    print("loaded", flush=True)
    {end}
"""


@either_end
def test_no_replica_outlives_the_program(end: str, tmp_path: Path) -> None:
    assert_nothing_outlives(PROGRAM, end, tmp_path)
