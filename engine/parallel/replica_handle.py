"""A replica in a process of its own, as the process that routes to it sees it."""

import queue
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from engine.parallel.children import Child, start_child
from engine.parallel.replica_messages import Command, Device, NewRequest, News, ShedNews, Sizes, StepNews, pack
from engine.parallel.replica_process import ReplicaTask, serve_replica
from engine.parallel.routing import Routed
from engine.request import FinishReason, Request, RequestEvent, RequestStatus
from engine.scheduler.plan import TokenEvent

Heard = tuple[int, News | None]
"""Number of a replica and what it said; None when it is gone."""

_END = pack(None)


class ReplicaHandle(Routed[int]):
    """One replica, its requests by their tickets. They are kept up to date by what it says of them.

    Threads talk to it and listen to it, so that whoever uses this never waits for a replica that does not read.

    Args:
        heard: where a thread of this process leaves all it says, so that it never waits to be heard.

    Attributes:
        device, sizes: as it said last.
        heard_at_s: when it last said anything, or got its first request; by `time.monotonic`.
    """

    device: Device
    sizes: Sizes

    def __init__(self, task: ReplicaTask, heard: "queue.SimpleQueue[Heard]") -> None:
        super().__init__(task.number)
        self.heard_at_s = time.monotonic()
        self.child: Child = start_child(f"replica {task.number}", serve_replica, task)
        self._outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        sender, listener = (self.child.connection, self._outbox), (task.number, self.child.connection, heard)
        threading.Thread(target=_send, args=sender, name=f"{self.child.role} sender", daemon=True).start()
        threading.Thread(target=_listen, args=listener, name=f"{self.child.role} listener", daemon=True).start()

    def tell(self, name: str, *arguments: Any, number: int = 0) -> None:
        """Send a command. A replica that is gone gets none, which is heard soon enough."""
        self._outbox.put(pack(Command(name, arguments, number)))

    def add(self, ticket: int, request: Request) -> None:
        """Send it a request."""
        if not self.live:
            self.heard_at_s = time.monotonic()
        self.live[ticket] = request
        self.tell("add_request", ticket, NewRequest.of(request))

    def end(self) -> None:
        """Tell it to end, once the step under way is done."""
        self._outbox.put(_END)

    def abort(self, ticket: int, now_ns: int, block_size: int) -> None:
        """End a request here, and send word. Nothing more is told of it."""
        request = self.live.pop(ticket)
        self.tell("abort", request.request_id)
        if request.is_finished:  # there, as it has said; only the event is on its way
            return
        held = 0
        if request.status is RequestStatus.RUNNING:
            # Its history has the blocks of its last chunk; those that decoding took since follow from its tokens.
            held = max(request.history[-1].blocks, -(-request.num_computed_tokens // block_size))
        request.status, request.finish_reason = RequestStatus.FINISHED, FinishReason.ABORT
        end = RequestEvent(now_ns, "finished", request.num_output_tokens, held, FinishReason.ABORT)
        request.history.append(end)

    def take_in(self, news: StepNews) -> list[TokenEvent]:
        """What a step has brought to the requests that are still there."""
        live = self.live
        for change in news.changes:
            request = live.get(change.ticket)
            if request is not None:
                change.apply(request)
        events = []
        for ticket, token_ids, time_ns, finish_reason in news.events:
            request = live.get(ticket)
            if request is None:
                continue
            if token_ids:
                request.token_ids += token_ids
                request.num_computed_tokens = len(request.token_ids) - 1
            if finish_reason is not None:
                del live[ticket]
            events.append(TokenEvent(request.request_id, token_ids, time_ns, finish_reason))
        self.kv_blocks_used = news.record.kv_blocks_used
        return events

    def take_in_shed(self, news: ShedNews) -> list[TokenEvent]:
        """A request was turned away at the door, after it had been sent."""
        request = self.live.pop(news.ticket, None)
        if request is None:
            return []
        request.status, request.finish_reason, request.shed = RequestStatus.FINISHED, FinishReason.SHED, news.error()
        return [TokenEvent(request.request_id, (), news.time_ns, FinishReason.SHED)]


def _send(connection: Connection, outbox: "queue.SimpleQueue[bytes]") -> None:
    """Send what is to be told until that is the end, or nobody is there."""
    with suppress(OSError):
        message = b""
        while message is not _END:
            message = outbox.get()
            connection.send_bytes(message)


def _listen(number: int, connection: Connection, heard: "queue.SimpleQueue[Heard]") -> None:
    with suppress(EOFError, OSError):
        while True:
            heard.put((number, connection.recv()))
    heard.put((number, None))
