"""One process at a time in a study's folder: two would number their runs alike and overwrite each other's record."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.errors import UserError


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder while inside. The system lets go of it when the process ends, however that ends.

    The lock is on the folder itself, so that nothing of it is left behind. A folder that is not there, and one on a
    file system without such locks, is not held.

    Raises:
        UserError: another process holds it.
    """
    handle = _open(folder)
    if handle is None:
        yield
        return
    try:
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)


def _open(folder: Path) -> int | None:
    try:
        return os.open(folder, os.O_RDONLY)
    except OSError:
        return None  # whoever opens the study says what is wrong with its folder


def _lock(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"{str(folder)!r} is in use by another tune process: wait for it to end, or interrupt it"
        ) from None
    except OSError:
        return
