"""Clients that hang up: what they waited for is given up at once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class ClientGone(Exception):
    """The client has closed the connection; an answer would go nowhere."""


async def unless_gone(http: Request, work: Awaitable[T]) -> T:
    """Await `work` while the client is there. Its body must have been read.

    Raises:
        ClientGone: the client hung up first; `work` is cancelled.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(http))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for future in (task, gone):
            future.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events; calls `release` when the stream is over, or the client gone.

    Args:
        events: of the stream.
    """

    def __init__(self, events: AsyncIterator[str], release: Callable[[], None]) -> None:
        # Proxies that collect what they pass on would undo the streaming.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()
