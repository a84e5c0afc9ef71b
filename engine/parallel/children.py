"""Processes that this one starts and talks to, over one connection each: their start, their end, and their errors.

Whose they are, ranks of one model or replicas of one engine, and what is said to them is for others to know.
"""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from engine.errors import KVCacheTooSmall, OutOfDeviceMemory, SwapSpaceTooSmall, UserError

# How long a process may take to end by itself before it is made to.
GRACE_S = 5.0
# How long to wait for news that ought to be on its way: a process that is gone closes its connections a moment before
# anyone can tell how it ended.
NEWS_S = 5.0

_KEPT = (UserError, KVCacheTooSmall, SwapSpaceTooSmall, OutOfDeviceMemory)


@dataclass(frozen=True, slots=True)
class Failure:
    """What a process says of an error of its own.

    Attributes:
        kind: class of the error.
        text: of the error.
        time_ns: when, by the machine's monotonic clock, which all processes share.
    """

    kind: str
    text: str
    time_ns: int

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """An error that happens now."""
        return cls(type(error).__name__, str(error), time.monotonic_ns())

    def as_error(self, who: str, otherwise: type[Exception]) -> Exception:
        """The error as what it was where the user or the caller can do something about it, else as `otherwise`.

        Args:
            who: the process, for the message; nothing where it does not matter.
        """
        for kind in _KEPT:
            if self.kind == kind.__name__:
                return kind(f"{who}: {self.text}" if who else self.text)
        return otherwise(f"{who} failed: {self.kind}: {self.text}" if who else f"{self.kind}: {self.text}")


@dataclass(frozen=True, slots=True)
class Child:
    """A process and this end of its connection.

    Attributes:
        role: what it is, such as `rank 1`.
    """

    role: str
    process: Any
    connection: Connection

    @property
    def name(self) -> str:
        """For people, who may look for it in a list of processes."""
        return f"{self.role} (process {self.process.pid})"

    @property
    def death(self) -> str:
        """How it ended, for people. It must have."""
        return f"{self.name} died: {_how(self.process.exitcode)}"


def start_child(role: str, target: Callable[[Any, Connection], None], task: Any) -> Child:
    """Start a process that runs `target(task, connection)`. Both must pickle."""
    # Not fork: neither CUDA nor torch's threads survive it.
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(task, there), name=role, daemon=True)
    process.start()
    # With this end open here the connection would not close as the process ends.
    there.close()
    return Child(role, process, here)


def join_children(children: Sequence[Child], grace_s: float = GRACE_S) -> None:
    """Wait for processes that were told to end, and end those by force that have not after `grace_s`."""
    deadline_s = time.monotonic() + grace_s
    for child in children:
        child.process.join(max(0.0, deadline_s - time.monotonic()))
    kill_children(children)
    for child in children:
        child.process.join(GRACE_S)


def kill_children(children: Iterable[Child]) -> None:
    """End processes at once."""
    for child in children:
        if child.process.is_alive():
            child.process.kill()


def _how(exitcode: int | None) -> str:
    if exitcode is None:
        return "it no longer answers"
    if exitcode >= 0:
        return f"exit code {exitcode}"
    number = -exitcode
    known = number in {s.value for s in signal.Signals}
    name = signal.Signals(number).name if known else f"signal {number}"
    return f"killed by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")
