"""An engine behind uvicorn: one process, one event loop, one thread for the engine."""

import errno
import math
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from engine.engine import Engine
from engine.errors import UserError
from engine.model.resolve import ModelSource
from engine.server.app import ServedModel, make_app
from engine.server.metrics import ServerMetrics
from engine.server.tokenizer import load_tokenizer
from engine.server.worker import EngineWorker

# Beyond the drain time: for answers to reach their clients, and for a step that is under way.
_CLOSING_S = 5


def listen(host: str, port: int) -> socket.socket:
    """Take an address before a model is loaded for it. Port 0 takes a free one.

    Raises:
        UserError: it cannot be had.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = f"port {port} of {host} is taken: stop what listens there, or choose another --port"
        else:
            reason = f"cannot listen on {host}, port {port}: {error.strerror or error}"
        raise UserError(reason) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where clients find it."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class EngineServer(uvicorn.Server):
    """Serves an engine until SIGTERM or Ctrl-C; then requests under way may still end for `drain_s` seconds.

    Args:
        engine: of a real device, idle; nobody else may use it.
        source: the model that it runs.
        say: told in one line what clients should know, and where they find the server once it listens.
    """

    def __init__(self, engine: Engine, source: ModelSource, drain_s: float, say: Callable[[str], None]) -> None:
        metrics = ServerMetrics()
        self._worker = EngineWorker(engine, metrics)
        self._drain_s = drain_s
        self._say = say
        self._what = f"{source.name} on {engine.executor.device_name}"
        max_model_len = engine.executor.max_model_len
        model = ServedModel(
            name=source.name,
            created=int(time.time()),
            max_model_len=max_model_len,
            # The last token of an answer is handed out, never computed.
            longest_request=min(max_model_len, engine.num_blocks * engine.cache_config.block_size + 1),
            tokenizer=load_tokenizer(source, say),
            queue_timeout_s=engine.scheduler_config.queue_timeout,
        )
        config = uvicorn.Config(
            make_app(self._worker, model, metrics),
            log_level="warning",
            timeout_graceful_shutdown=math.ceil(drain_s) + _CLOSING_S,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            self._say(f"serving {self._what}: {url_of(listener)}/v1")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Before uvicorn closes the door: it waits for the answers under way, and so for the worker.
        self._worker.stop(self._drain_s)
        super().handle_exit(sig, frame)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on bound sockets until told to stop."""
        try:
            super().run(sockets)
        finally:
            self._worker.stop(0)
            self._worker.join(_CLOSING_S)
