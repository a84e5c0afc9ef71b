"""Replicas in processes of their own, started, asked, heard and ended together; one that is lost is lost to all."""

import queue
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NoReturn

from engine.errors import ReplicaFailed
from engine.parallel.children import GRACE_S, NEWS_S, Failure, join_children, kill_children
from engine.parallel.replica_handle import Heard, ReplicaHandle
from engine.parallel.replica_messages import Answer, ShedNews, StepNews
from engine.parallel.replica_process import ReplicaTask


class ReplicaGroup:
    """The processes. Used by one thread.

    When a replica dies, or does not answer in time, all are ended; the call under way raises `ReplicaFailed`, and every
    later one too.

    Args:
        tasks: one per replica.
        timeout_s: the longest that a command or a step may take; loading may take longer.

    Attributes:
        members: the replicas, in the order of their numbers; loaded.

    Raises:
        UserError, OutOfDeviceMemory: as `load_executor` and `Engine`.
        ReplicaFailed: a replica failed otherwise, or died, while it was loaded.
    """

    def __init__(self, tasks: Sequence[ReplicaTask], timeout_s: float) -> None:
        self.members: list[ReplicaHandle] = []
        self._timeout_s = timeout_s
        self._heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        # Heard while answers were waited for, and not told yet.
        self._kept: deque[Heard] = deque()
        self._commands = count(1)
        self._loss: ReplicaFailed | None = None
        # Also when nobody calls `shutdown`, as the interpreter ends.
        self._end = weakref.finalize(self, _end, self.members, GRACE_S)
        try:
            for task in tasks:
                self.members.append(ReplicaHandle(task, self._heard))
            loaded = self._values(self.members, self._await_loading())
        except BaseException:
            self._end.detach()
            _end(self.members, grace_s=0.0)
            raise
        for member, (device, sizes) in zip(self.members, loaded, strict=True):
            member.device, member.sizes = device, sizes

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """What all replicas answer to a command, see `engine.parallel.replica_process.Replica`.

        Raises:
            UserError, OutOfDeviceMemory: what one of them ran into, and lives on.
            ReplicaFailed: another error, or one is gone.
        """
        return self._values(self.members, self.answers(self.members, name, *arguments))

    def ask_for_change(self, name: str, new: Sequence[Any], old: Sequence[Any]) -> list[Any]:
        """As `ask` with `new`; but where not all of them can do it, those that did are asked again with `old`."""
        answers = self.answers(self.members, name, *new)
        changed = [m for m, answer in zip(self.members, answers, strict=True) if not isinstance(answer, Failure)]
        if len(changed) < len(self.members):
            self._values(changed, self.answers(changed, name, *old))
        return self._values(self.members, answers)

    def answers(self, members: Sequence[ReplicaHandle], name: str, *arguments: Any) -> list[Any | Failure]:
        """What some replicas answer to a command, errors among it."""
        self.require_whole()
        number = next(self._commands)
        for member in members:
            member.tell(name, *arguments, number=number)
        return self._collect(members, number)

    def news(self, patience_s: float, silence_s: float) -> tuple[ReplicaHandle, StepNews | ShedNews] | None:
        """What is heard next of steps and requests; None when it is nothing for a moment.

        Args:
            patience_s: the moment.
            silence_s: how long a replica with requests may have nothing to do.

        Raises:
            OutOfDeviceMemory, ReplicaFailed: a step failed; or a replica is gone, or silent for too long.
        """
        self.require_whole()
        heard = self._kept.popleft() if self._kept else self._listen(patience_s)
        if heard is None:
            oldest_s = time.monotonic() - self._timeout_s - silence_s
            silent = next((m for m in self.members if m.live and m.heard_at_s < oldest_s), None)
            if silent is not None:
                self._give_up(silent)
            return None
        number, news = heard
        member = self.members[number]
        if news is None:
            self._lose(member)
        if isinstance(news, Failure):
            raise news.as_error(member.child.role, ReplicaFailed)
        # An answer comes too late when whoever waited for it was interrupted.
        return None if isinstance(news, Answer) else (member, news)

    def forget(self) -> None:
        """Begin anew: all have answered since, so whatever was kept is of before, but for the end of a replica."""
        self._kept = deque(heard for heard in self._kept if heard[1] is None)
        for member in self.members:
            member.clear()

    def require_whole(self) -> None:
        """See that no replica was lost.

        Raises:
            ReplicaFailed: one was, always in the same words.
        """
        if self._loss is not None:
            raise ReplicaFailed(*self._loss.args)
        gone = next((number for number, news in self._kept if news is None), None)
        if gone is not None:
            self._lose(self.members[gone])

    def shutdown(self) -> None:
        """End all processes: those that listen by themselves, the others by force."""
        self._end()

    def _await_loading(self) -> list[Any | Failure | None]:
        """The first answers. They may take long; but once a replica has failed, the others have only a moment to say
        that they have too, and those that say nothing have None."""
        deadline_s = None
        answers: dict[int, Any | Failure] = {}
        while len(answers) < len(self.members):
            heard = self._listen(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
            if heard is None:
                break
            replica, news = heard
            if isinstance(news, Answer):
                answers[replica] = news.value
                if deadline_s is None and isinstance(news.value, Failure):
                    deadline_s = time.monotonic() + NEWS_S
            elif deadline_s is None and replica not in answers:
                self._lose(self.members[replica])
            else:
                self._kept.append(heard)
        return [answers.get(member.number) for member in self.members]

    def _collect(self, members: Sequence[ReplicaHandle], number: int) -> list[Any | Failure]:
        """Wait for the answers to a command, and keep what else is heard meanwhile."""
        deadline_s = time.monotonic() + self._timeout_s
        answers: dict[int, Any | Failure] = {}
        while len(answers) < len(members):
            heard = self._listen(max(0.0, deadline_s - time.monotonic()))
            if heard is None:
                self._give_up(next(m for m in members if m.number not in answers))
            replica, news = heard
            if isinstance(news, Answer):
                if news.number == number:
                    answers[replica] = news.value
            elif news is None and replica not in answers:
                self._lose(self.members[replica])
            else:
                self._kept.append(heard)
        return [answers[member.number] for member in members]

    def _values(self, members: Sequence[ReplicaHandle], answers: Sequence[Any | Failure]) -> list[Any]:
        failures = [(m, a) for m, a in zip(members, answers, strict=True) if isinstance(a, Failure)]
        if failures:
            member, failure = failures[0]
            # What all of them ran into is no matter of one.
            who = "" if len(failures) == len(self.members) else member.child.role
            raise failure.as_error(who, ReplicaFailed)
        return list(answers)

    def _listen(self, timeout_s: float | None) -> Heard | None:
        """What is heard next; None when it is nothing for so long."""
        with suppress(queue.Empty):
            heard = self._heard.get(timeout=timeout_s)
            self.members[heard[0]].heard_at_s = time.monotonic()
            return heard
        return None

    def _lose(self, member: ReplicaHandle) -> NoReturn:
        """A replica is gone."""
        child = member.child
        child.process.join(NEWS_S)
        words = [news for number, news in self._kept if number == member.number and isinstance(news, Failure)]
        # Whoever ends by itself has said why.
        by_itself = words and (child.process.exitcode or 0) > 0
        self._fail(f"{child.name} failed: {words[-1].kind}: {words[-1].text}" if by_itself else child.death)

    def _give_up(self, member: ReplicaHandle) -> NoReturn:
        """A replica is there, but says nothing."""
        self._fail(f"{member.child.name} did not answer within {self._timeout_s:g} s, so it was ended: it may hang")

    def _fail(self, text: str) -> NoReturn:
        """End all replicas; from now on every call fails with this text."""
        self._loss = ReplicaFailed(text)
        kill_children([m.child for m in self.members])
        raise ReplicaFailed(text)


def _end(members: Sequence[ReplicaHandle], grace_s: float) -> None:
    for member in members:
        member.end()
    join_children([member.child for member in members], grace_s)
