"""The process of a replica: an engine on a device of its own, which runs freely and tells what its steps bring.

Commands are carried out between two steps. A thread takes them in as they come, so that whoever sends them never waits
for a step; the thread that the process began with does all else.
"""

import gc
import os
import queue
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from engine.build import load_executor
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.engine import Engine
from engine.errors import RequestShed
from engine.executor.base import MemoryProfile
from engine.model.resolve import ModelSource
from engine.parallel.child_life import live_with_parent
from engine.parallel.children import Failure
from engine.parallel.replica_messages import (
    Answer,
    Change,
    Command,
    Device,
    NewRequest,
    News,
    ShedNews,
    Sizes,
    StepNews,
    device_of,
    send,
)
from engine.request import Request


@dataclass(frozen=True, slots=True)
class ReplicaTask:
    """What a replica has to know to begin.

    Attributes:
        number: which one it is.
        host_bytes: what it may take of the host's memory.
        config: of its engine; device and memory are its own.
        source: the model.
        longest_request: see `load_executor`.
        threads: for arithmetic on the CPU.
    """

    number: int
    host_bytes: int
    config: EngineConfig
    source: ModelSource
    longest_request: int
    threads: int


def serve_replica(task: ReplicaTask, connection: Connection) -> None:
    """The life of the process. Its first answer is `(Device, Sizes)`.

    It ends when it is told to, when the parent is gone, or with an error that it tells.
    """
    live_with_parent()
    try:
        engine, device = _load(task)
    except Exception as error:
        _end(connection, Answer(0, Failure.of(error)))
    try:
        replica = Replica(task.number, engine, connection)
        send(connection, Answer(0, (device, replica.sizes())))
        replica.serve()
    except Exception as error:
        _end(connection, Failure.of(error))
    os._exit(0)


def _end(connection: Connection, last_word: News) -> None:
    with suppress(OSError):
        send(connection, last_word)
    # Not the interpreter's orderly end, which may wait for what has failed.
    os._exit(1)


def _load(task: ReplicaTask) -> tuple[Engine, Device]:
    import torch

    from engine.executor.device import share_host

    torch.set_num_threads(task.threads)
    share_host(task.host_bytes)
    config = task.config
    if config.device.startswith("cuda"):
        # Whatever names no card means this one, and takes no memory of another replica's.
        torch.cuda.set_device(config.device)
    executor = load_executor(config, task.source, longest_request=task.longest_request)
    # From now on between two runs, as whoever drives them does in his own process: not in the middle of a measurement.
    gc.collect()
    gc.freeze()
    gc.disable()
    return Engine(executor, config.scheduler, config.cache), device_of(executor, task.threads)


@dataclass(slots=True, eq=False)
class _Live:
    """A request that the engine has, and how much of its story has been told."""

    ticket: int
    request: Request
    events: int = 0
    recomputed_tokens: int = 0

    @property
    def has_changed(self) -> bool:
        """Beyond what its tokens say. Asked of every request after every step, so it is not a comparison of all."""
        request = self.request
        return len(request.history) != self.events or request.num_recomputed_tokens != self.recomputed_tokens

    def change(self) -> Change:
        """What is new, which is told by that."""
        request, events_told = self.request, self.events
        self.events, self.recomputed_tokens = len(request.history), request.num_recomputed_tokens
        return Change.of(self.ticket, request, events_told)


class Replica:
    """Runs an engine and carries out commands, which are the names of its public methods."""

    def __init__(self, number: int, engine: Engine, connection: Connection) -> None:
        self._number = number
        self._engine = engine
        self._connection = connection
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._live: dict[str, _Live] = {}
        self._has_failed = False
        threading.Thread(target=_listen, args=(connection, self._commands), name="listener", daemon=True).start()

    def serve(self) -> None:
        """Run until told to end, or until nobody is there to be told anything."""
        commands = self._commands
        while True:
            patience_s = self._patience_s()
            if commands.empty() and patience_s == 0:
                if not self._step():
                    return
                continue
            try:
                command = commands.get(timeout=patience_s)
            except queue.Empty:
                continue
            if command is None or not self._carry_out(command):
                return

    def _patience_s(self) -> float | None:
        """How long there is nothing to do unless a command comes; None for ever."""
        engine = self._engine
        if self._has_failed or not engine.has_work:
            return None
        until_ns = engine.idle_until_ns
        return 0 if until_ns is None else max(0.0, (until_ns - engine.clock.now_ns()) / 1e9)

    def _carry_out(self, command: Command) -> bool:
        try:
            value = getattr(self, command.name)(*command.arguments)
        except Exception as error:
            value = Failure.of(error)
            if not command.number:
                return self._tell(value)
        return not command.number or self._tell(Answer(command.number, value))

    def _step(self) -> bool:
        try:
            events, record = self._engine.step()
        except Exception as error:
            # Only `reset` makes the engine usable again.
            self._has_failed = True
            return self._tell(Failure.of(error))
        live = self._live
        changes = [one.change() for one in live.values() if one.has_changed]
        told = []
        for request_id, tokens, time_ns, finish_reason in events:
            one = live.get(request_id)
            # An end by timeout comes a step after it, and its request may have been aborted meanwhile: then it is gone,
            # or the id is another's, who goes on.
            if one is None or (finish_reason is not None and not one.request.is_finished):
                continue
            told.append((one.ticket, tokens, time_ns, finish_reason))
            if finish_reason is not None:
                del live[request_id]
        return self._tell(StepNews(told, changes, replace(record, replica=self._number)))

    def _tell(self, news: News) -> bool:
        """Say something. False when nobody is there."""
        try:
            send(self._connection, news)
        except OSError:
            return False
        return True

    def add_request(self, ticket: int, new: NewRequest) -> None:
        """Queue a request. That it is shed is told; what would refuse it was looked at before it was sent."""
        request = Request(*new)
        try:
            self._engine.add_request(request)
        except RequestShed as shed:
            now_ns = self._engine.clock.now_ns()
            self._tell(ShedNews(ticket, now_ns, str(shed), shed.limit, shed.retry_after_s))
        else:
            self._live[request.request_id] = _Live(ticket, request)

    def abort(self, request_id: str) -> None:
        """End a request; nothing is said when it is not there, as it may have ended meanwhile."""
        self._live.pop(request_id, None)
        if not self._has_failed:  # else `reset` ends all
            self._engine.abort(request_id)

    def reconfigure(self, scheduler: SchedulerConfig | None, cache: CacheConfig | None) -> Sizes:
        """See `Engine.reconfigure`."""
        if self._has_failed:
            self.reset()
        self._engine.reconfigure(scheduler=scheduler, cache=cache)
        gc.collect()
        return self.sizes()

    def reset(self) -> None:
        """See `Engine.reset`."""
        self._engine.reset()
        self._live.clear()
        self._has_failed = False
        gc.collect()

    def sizes(self) -> Sizes:
        """What the memory settings have come to."""
        engine = self._engine
        link = engine.executor.host_link_bytes_per_s
        return Sizes(engine.num_blocks, engine.num_swap_blocks, engine.kv_budget, link)

    def profile_memory(self, max_num_batched_tokens: int, max_num_seqs: int) -> MemoryProfile:
        """See `Executor.profile_memory`."""
        return self._engine.executor.profile_memory(max_num_batched_tokens, max_num_seqs)

    def kv_bytes_per_block(self, block_size: int) -> int:
        """See `Executor.kv_bytes_per_block`."""
        return self._engine.executor.kv_bytes_per_block(block_size)


def _listen(connection: Connection, commands: "queue.SimpleQueue[Any]") -> None:
    """Take commands in until there are no more."""
    with suppress(EOFError, OSError):
        while True:
            commands.put(connection.recv())
    commands.put(None)
