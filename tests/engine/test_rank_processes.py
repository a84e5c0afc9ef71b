"""Rank 0's hold on the other processes: their answers, their errors, and their ends. No torch, so that it is quick."""

import os
from multiprocessing.connection import Connection

import pytest

from engine.errors import OutOfDeviceMemory, RankFailed, UserError
from engine.parallel.children import Failure
from engine.parallel.processes import RankProcesses


def answer(task: object, connection: Connection) -> None:
    """Send what the task is; where it is an exit code end with it; then listen until nobody is there."""
    if isinstance(task, int):
        os._exit(task)
    connection.send(task)
    try:
        while True:
            connection.recv_bytes()
    except EOFError:
        pass


def processes(*tasks: object, timeout_s: float = 30.0, lost: list[str] | None = None) -> RankProcesses:
    lost = [] if lost is None else lost
    return RankProcesses(answer, tasks, timeout_s=timeout_s, on_loss=lambda: lost.append("told"))


def test_a_rank_that_dies_before_it_answers_is_named_with_its_exit_code() -> None:
    lost: list[str] = []
    others = processes("here", 7, lost=lost)
    with pytest.raises(RankFailed, match=r"rank 2 \(process \d+\) died: exit code 7"):
        others.collect()
    others.close()
    assert lost == ["told"]


def test_a_rank_that_never_answers_is_ended_after_the_timeout() -> None:
    others = processes("here", timeout_s=0.1)
    assert others.collect() == ["here"]
    others.tell("anything", None)
    with pytest.raises(RankFailed, match=r"did not finish a command within 0\.1 s"):
        others.collect()
    others.close()


def test_errors_of_a_rank_that_lives_on_are_what_they_were() -> None:
    others = processes("fine", Failure("OutOfDeviceMemory", "cuda:2 is full", 2))
    with pytest.raises(OutOfDeviceMemory, match="rank 2: cuda:2 is full"):
        others.collect()
    others.close()


@pytest.mark.parametrize(
    ("kind", "error"), [("UserError", UserError), ("OutOfDeviceMemory", OutOfDeviceMemory), ("KeyError", RankFailed)]
)
def test_a_failure_is_raised_as_what_the_caller_can_act_on(kind: str, error: type[Exception]) -> None:
    found = Failure(kind, "why", 0).as_error("rank 3", RankFailed)
    assert type(found) is error
    assert "rank 3" in str(found)
