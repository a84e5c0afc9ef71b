"""The process of a rank other than 0: the same executor over its part of the model, told what to do step by step."""

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from engine.errors import OutOfDeviceMemory, UserError
from engine.executor.torch_executor import TorchExecutor
from engine.model.resolve import ModelSource
from engine.parallel.child_life import live_with_parent
from engine.parallel.children import Failure
from engine.parallel.collectives import HOST, RankGroup
from engine.parallel.plan_messages import PlanReceiver
from engine.parallel.sharding import Shard

HERE, LOADED = "here", "loaded"
"""What a rank answers unasked: that it is about to join the others, and that it has its part of the model."""


@dataclass(frozen=True, slots=True)
class RankTask:
    """What a rank has to know to begin.

    Attributes:
        shard: which rank it is.
        port: on this machine, where rank 0 keeps the store in which the ranks find one another.
        timeout_s: see `RankGroup`.
        source: the model.
        device: of this rank.
        options: of `TorchExecutor.load`.
        threads: for arithmetic on the CPU.
    """

    shard: Shard
    port: int
    timeout_s: float
    source: ModelSource
    device: str
    options: dict[str, Any]
    threads: int


def serve_rank(task: RankTask, connection: Connection) -> None:
    """The life of the process. It ends when rank 0 hangs up or dies, or with an error that it tells rank 0."""
    live_with_parent()
    try:
        connection.send(HERE)
        _serve(task, connection)
        code = 0
    except Exception as error:
        connection.send(Failure.of(error))
        code = 1
    # Not the interpreter's orderly end, which may wait for collectives that the other ranks will never join.
    os._exit(code)


def _serve(task: RankTask, connection: Connection) -> None:
    torch.set_num_threads(task.threads)
    store = dist.TCPStore(HOST, task.port, is_master=False)
    group = RankGroup(task.shard, store, torch.device(task.device), task.timeout_s)
    executor = TorchExecutor.load(task.source, device=task.device, ranks=group, **task.options)
    connection.send(LOADED)
    rank = _Rank(executor, group, connection)
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            return
        command, argument = pickle.loads(message)
        _COMMANDS[command](rank, argument)


class _Rank:
    """Carries out commands. `execute` has no answer: rank 0 sees by the sums and by the process that all went well."""

    def __init__(self, executor: TorchExecutor, group: RankGroup, connection: Connection) -> None:
        self._executor = executor
        self._group = group
        self._connection = connection
        self._plans = PlanReceiver()

    def execute(self, message: Any) -> None:
        self._executor.execute(self._plans.unpack(message))

    def profile_memory(self, size: tuple[int, int]) -> None:
        with self._group.silence():
            self._answer(lambda: self._executor.profile_memory(*size))

    def allocate_kv(self, size: tuple[int, int, int]) -> None:
        def allocate() -> float | None:
            self._executor.allocate_kv(*size)
            return self._executor.host_link_bytes_per_s

        self._answer(allocate)

    def _answer(self, action: Callable[[], object]) -> None:
        try:
            answer = action()
        except (UserError, OutOfDeviceMemory) as error:
            # No other rank waits in a collective, so this one lives on.
            answer = Failure.of(error)
        self._connection.send(answer)


_COMMANDS: dict[str, Callable[[_Rank, Any], None]] = {
    "execute": _Rank.execute,
    "profile_memory": _Rank.profile_memory,
    "allocate_kv": _Rank.allocate_kv,
}
