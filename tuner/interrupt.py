"""Ctrl-C in the middle of a run: the run ends at its next step and what it measured is kept."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], bool]]:
    """Hold back the first SIGINT or SIGTERM while inside; a second one interrupts at once.

    Yields:
        Tells whether one has come. Whoever has stored what there was to store raises `KeyboardInterrupt` then.
    """
    came = threading.Event()

    def note(signum: int, frame: FrameType | None) -> None:
        if came.is_set():
            raise KeyboardInterrupt
        came.set()

    if threading.current_thread() is not threading.main_thread():
        yield came.is_set  # only the main thread hears signals
        return
    before: dict[signal.Signals, Any] = {s: signal.signal(s, note) for s in _SIGNALS}
    try:
        yield came.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
