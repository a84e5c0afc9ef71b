"""Rank 0's hold on the processes of the other ranks: starts them, tells them what to do, notices when one is gone."""

import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from engine.errors import RankFailed
from engine.parallel.children import GRACE_S, NEWS_S, Child, Failure, join_children, kill_children, start_child

_SETTLE_S = 0.2
_POLL_S = 1.0


class RankProcesses:
    """Ranks 1 .. size - 1, each a process of its own. Used by one thread.

    A thread beside it watches: when a process ends that was not told to, or a step takes longer than `timeout_s`, it
    calls `on_loss`, which is to make a collective return that rank 0 may be in.

    Args:
        tasks: one per rank, each handed to `target` with the rank's end of a connection. Both must pickle.
        timeout_s: the longest that a command may take.
    """

    def __init__(
        self,
        target: Callable[[Any, Connection], None],
        tasks: Sequence[Any],
        *,
        timeout_s: float,
        on_loss: Callable[[], None],
    ) -> None:
        self._timeout_s = timeout_s
        self._on_loss = on_loss
        self._busy_since_s: float | None = None
        self._is_closing = False
        self._loss: RankFailed | None = None
        self._lost = threading.Event()
        self._ranks = [start_child(f"rank {number}", target, task) for number, task in enumerate(tasks, start=1)]
        threading.Thread(target=self._watch, name="rank watcher", daemon=True).start()

    def tell(self, command: str, argument: object) -> None:
        """Send a command to all ranks; what they answer is `collect`ed.

        Raises:
            RankFailed: one is gone.
        """
        self.check()
        message = pickle.dumps((command, argument), protocol=pickle.HIGHEST_PROTOCOL)
        self._busy_since_s = time.monotonic()
        for rank in self._ranks:
            try:
                rank.connection.send_bytes(message)
            except OSError:
                self._raise_loss()

    def done(self) -> None:
        """The last command, which has no answer, is carried out as far as rank 0 can tell.

        Raises:
            RankFailed: a rank was lost meanwhile.
        """
        self._busy_since_s = None
        self.check()

    def collect(self) -> list[Any]:
        """The answers of all ranks to the last command, in their order.

        Raises:
            UserError, OutOfDeviceMemory: what a rank ran into, and lives on.
            RankFailed: a rank is gone, or takes too long.
        """
        answers = []
        for rank in self._ranks:
            try:
                # The watcher ends whoever takes too long, and with it the connection.
                answers.append(rank.connection.recv())
            except (EOFError, OSError):
                self._raise_loss()
        self._busy_since_s = None
        for rank, answer in zip(self._ranks, answers, strict=True):
            if isinstance(answer, Failure):
                raise answer.as_error(rank.role, RankFailed)
        return answers

    def check(self) -> None:
        """See that all ranks are there.

        Raises:
            RankFailed: with the rank that is not, and why.
        """
        if self._lost.is_set():
            self._raise_loss()

    def loss_behind(self) -> RankFailed | None:
        """The loss of a rank, which may explain an error here; None when all are well. Waits a moment for the news."""
        self._busy_since_s = None
        return self._explain() if self._lost.wait(NEWS_S) else None

    def close(self) -> None:
        """End all processes: those that listen by themselves, the others by force."""
        self._is_closing = True
        for rank in self._ranks:
            rank.connection.close()
        join_children(self._ranks, 0 if self._lost.is_set() else GRACE_S)

    def kill(self) -> None:
        """End all processes at once."""
        self._is_closing = True
        kill_children(self._ranks)

    def _watch(self) -> None:
        sentinels = [rank.process.sentinel for rank in self._ranks]
        while not self._is_closing:
            ended = wait(sentinels, timeout=_POLL_S)
            if self._is_closing:
                return
            busy_since_s = self._busy_since_s
            took_s = 0.0 if busy_since_s is None else time.monotonic() - busy_since_s
            if not ended and took_s < self._timeout_s:
                continue
            if not ended:
                self._loss = RankFailed(
                    f"the ranks did not finish a command within {self._timeout_s:g} s, so they were ended: one of them "
                    "may hang, or wait for the others"
                )
                kill_children(self._ranks)
            self._lost.set()
            self._on_loss()
            return

    def _raise_loss(self) -> None:
        self._lost.wait(NEWS_S)
        raise self._explain()

    def _explain(self) -> RankFailed:
        """Which rank was lost and why. The first to go takes others along, who complain of nothing but that."""
        if self._loss is None:
            for rank in self._ranks:
                rank.process.join(_SETTLE_S)
            killed = [rank for rank in self._ranks if (rank.process.exitcode or 0) < 0]
            words = sorted(self._last_words(), key=lambda said: said[1].time_ns)
            ended = [rank for rank in self._ranks if rank.process.exitcode is not None]
            if killed or (ended and not words):
                self._loss = RankFailed((killed or ended)[0].death)
            elif words:
                rank, failure = words[0]
                self._loss = RankFailed(f"{rank.name} failed: {failure.kind}: {failure.text}")
            else:
                self._loss = RankFailed("a rank no longer answers")
        return RankFailed(*self._loss.args)

    def _last_words(self) -> Iterator[tuple[Child, Failure]]:
        for rank in self._ranks:
            with suppress(EOFError, OSError):
                while rank.connection.poll():
                    answer = rank.connection.recv()
                    if isinstance(answer, Failure):
                        yield rank, answer
