"""The thread that owns the engine.

An engine is single-threaded: everything that touches it happens here, between two steps. Whoever serves requests
leaves commands in a thread-safe queue and finds events in an `Inbox` of the event loop.
"""

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from engine.clock import Clock
from engine.errors import RequestShed, UserError
from engine.request import FinishReason, Request, RequestStatus
from engine.scheduler.plan import TokenEvent
from engine.server.faults import EngineFailed, ServerUnavailable
from engine.server.metrics import ServerLoad, ServerMetrics
from engine.serving import ServingEngine

_log = logging.getLogger("tune.server")
_NS_PER_S = 1e9


class ServedEngine(ServingEngine, Protocol):
    """What the worker needs of an engine."""

    def reset(self) -> None: ...


class Inbox:
    """Events of the requests of one HTTP call, in the order in which they happened. Lives in the event loop."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[TokenEvent | Exception] = asyncio.Queue()

    def put(self, item: TokenEvent | Exception) -> None:
        self._items.put_nowait(item)

    async def get(self) -> TokenEvent:
        """The next event; raises the error in its place where a request was refused, or failed."""
        item = await self._items.get()
        if isinstance(item, Exception):
            raise item
        return item


@dataclass(slots=True)
class _Live:
    """A request that the engine has taken and that has not ended."""

    request: Request
    inbox: Inbox
    has_begun: bool = False


class EngineWorker:
    """Runs an engine in a thread of its own.

    Invariant: `_live` holds exactly the requests that are in the engine. A request that was submitted gets events up
    to one with a finish reason, or an error, unless it is ended by `end`.

    Args:
        engine: nobody else may use it from `start` on.
        metrics: told of every step and request.
    """

    def __init__(self, engine: ServedEngine, metrics: ServerMetrics) -> None:
        self._engine = engine
        self._metrics = metrics
        # Unlike Queue, its put may be called by a signal handler at any moment.
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._live: dict[str, _Live] = {}
        self._kv_usage = 0.0
        self._failure: str | None = None
        self._stop_at_ns: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin; events go to inboxes of this loop."""
        self._loop = loop
        self._thread.start()

    @property
    def clock(self) -> Clock:
        return self._engine.clock

    @property
    def problem(self) -> str | None:
        """Why no requests are taken; None while they are."""
        if self._failure is not None:
            return self._failure
        if self._ended.is_set() or self._stop_at_ns is not None:
            return "the server is shutting down"
        return None

    def load(self) -> ServerLoad:
        """What goes on at this moment."""
        # The list is made in one bytecode; statuses may change while they are counted, which no reader can tell.
        requests = [live.request for live in list(self._live.values())]
        running = sum(request.status is RequestStatus.RUNNING for request in requests)
        return ServerLoad(running, len(requests) - running, self._kv_usage if requests else 0.0)

    def submit(self, request: Request, inbox: Inbox) -> None:
        """Hand over a request; what becomes of it, a refusal too, comes to `inbox`. Call it in the event loop.

        The inbox may raise:
            RequestShed, RequestRefused, UserError: the engine did not take it.
            EngineFailed: a step broke off, and the request with it.
            ServerUnavailable: no requests are taken; see `problem`.
        """
        self._commands.put(partial(self._add, request, inbox))
        if self._ended.is_set():  # perhaps after the thread has emptied the queue for the last time
            inbox.put(ServerUnavailable(self.problem or ""))

    def end(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a request and take its blocks back; no event of it comes any more. Does nothing when it has ended."""
        self._commands.put(partial(self._end, request_id, reason))

    def stop(self, drain_s: float) -> None:
        """Take no more requests; those under way have `drain_s` seconds, then they end as aborted.

        May be called by a signal handler.
        """
        self._commands.put(partial(self._stop, drain_s))

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended after a `stop`, but for a step that hangs not longer than `timeout_s`."""
        if self._thread.ident is not None:  # else it never began
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._is_done():
                self._obey(self._patience_s())
                if self._patience_s() == 0 and not self._is_done():
                    self._step()
            self._abort_all()
        except Exception as error:
            _log.exception("the engine's thread broke off")
            self._failure = f"the engine's thread broke off: {_describe(error)}"
            self._fail_all(ServerUnavailable(self._failure))
        finally:
            self._ended.set()
            self._obey(0)

    def _is_done(self) -> bool:
        stop_at_ns = self._stop_at_ns
        return stop_at_ns is not None and (not self._live or self.clock.now_ns() >= stop_at_ns)

    def _patience_s(self) -> float | None:
        """How long to wait for a command: 0 when a step would do something, None when nothing else can happen."""
        if self._failure is not None or not self._engine.has_work:
            return None if self._stop_at_ns is None else 0.0
        wake_ns = self._engine.idle_until_ns
        if wake_ns is None:
            return 0.0
        if self._stop_at_ns is not None:
            wake_ns = min(wake_ns, self._stop_at_ns)
        return max(0, wake_ns - self.clock.now_ns()) / _NS_PER_S

    def _obey(self, patience_s: float | None) -> None:
        """Carry out all commands that there are, after waiting for the first."""
        with contextlib.suppress(queue.Empty):
            self._commands.get(timeout=patience_s)()
            while True:
                self._commands.get_nowait()()

    def _add(self, request: Request, inbox: Inbox) -> None:
        if self.problem is not None:
            self._deliver([(inbox, ServerUnavailable(self.problem))])
            return
        try:
            self._engine.add_request(request)
        except RequestShed as shed:
            self._metrics.shed(shed.limit)
            self._deliver([(inbox, shed)])
        except UserError as refusal:
            self._deliver([(inbox, refusal)])
        except Exception as error:
            self._live[request.request_id] = _Live(request, inbox)
            self._recover(error)
        else:
            self._live[request.request_id] = _Live(request, inbox)

    def _end(self, request_id: str, reason: FinishReason) -> None:
        live = self._live.pop(request_id, None)
        if live is not None:
            self._engine.abort(request_id)
            self._metrics.finished(live.request, reason, self.clock.now_ns())

    def _stop(self, drain_s: float) -> None:
        self._stop_at_ns = self.clock.now_ns() + round(drain_s * _NS_PER_S)

    def _step(self) -> None:
        try:
            events, record = self._engine.step()
        except Exception as error:
            self._recover(error)
            return
        if record is None:
            return
        self._metrics.step(record)
        self._kv_usage = record.kv_blocks_used / record.kv_blocks_total
        deliveries: list[tuple[Inbox, TokenEvent | Exception]] = []
        for event in events:
            live = self._live[event.request_id]
            if event.token_ids and not live.has_begun:
                live.has_begun = True
                self._metrics.first_token(live.request, event.time_ns)
            self._metrics.tokens(len(event.token_ids))
            if event.finish_reason is not None:
                del self._live[event.request_id]
                self._metrics.finished(live.request, FinishReason(event.finish_reason), event.time_ns)
            deliveries.append((live.inbox, event))
        self._deliver(deliveries)

    def _recover(self, error: Exception) -> None:
        """The engine broke off: the requests in it are lost, the server is not."""
        _log.error("the engine failed", exc_info=error)
        self._metrics.engine_failed()
        reason = _describe(error)
        try:
            self._engine.reset()
        except Exception as second:
            _log.exception("the engine could not be reset")
            self._failure = f"the engine failed ({reason}) and could not be reset: {_describe(second)}"
        self._fail_all(EngineFailed(f"the engine failed while this request was in it: {reason}"))

    def _fail_all(self, error: Exception) -> None:
        self._deliver([(live.inbox, error) for live in self._live.values()])
        self._live.clear()

    def _abort_all(self) -> None:
        """End what a stop has left."""
        for request_id, live in list(self._live.items()):
            self._end(request_id, FinishReason.ABORT)
            event = TokenEvent(request_id, (), self.clock.now_ns(), FinishReason.ABORT)
            self._deliver([(live.inbox, event)])

    def _deliver(self, items: list[tuple[Inbox, TokenEvent | Exception]]) -> None:
        # A closed loop has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            if items and self._loop is not None:
                self._loop.call_soon_threadsafe(_put_all, items)


def _put_all(items: list[tuple[Inbox, TokenEvent | Exception]]) -> None:
    for inbox, item in items:
        inbox.put(item)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
