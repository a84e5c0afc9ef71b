"""What a process started by `engine.parallel.children` does for itself: it ends with its parent, and not before."""

import os
import signal
import threading
from multiprocessing import parent_process
from multiprocessing.connection import wait


def live_with_parent() -> None:
    """Ignore Ctrl-C, which reaches every process of a terminal: the parent decides what becomes of the run.

    A parent that is killed cannot say so, and this process may sit in a step that will never end, so a thread watches.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent watcher", daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
