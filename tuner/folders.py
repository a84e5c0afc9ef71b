"""Where new results go: a folder that does not exist yet, in a place that can be written to."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.errors import UserError
from tuner.lock import alone_in


def new_folder(out: str | None, default_name: str) -> Path:
    """The folder of new results: `out`, or a fresh one under `runs/`. It is not made here.

    Raises:
        UserError: `out` exists and is not an empty folder.
    """
    if out is None:
        # A workload's name comes from its file, and may hold what no folder's name should.
        base = Path("runs") / re.sub(r"[^\w.-]+|\.{2,}", "-", default_name)
        numbered = (base.with_name(f"{base.name}-{n}") for n in range(2, 1_000_000))
        return base if not base.exists() else next(p for p in numbered if not p.exists())
    path = Path(out)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"--out {out!r} exists already: choose a new folder")
    return path


def require_writable(folder: Path) -> None:
    """Find out before measuring that results can be stored.

    Raises:
        UserError: they cannot.
    """
    import tempfile

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder if folder.exists() else folder.parent):
            pass
    except OSError as error:
        raise UserError(f"cannot write to {str(folder)!r}: {error.strerror or error}; choose another --out") from error


@contextmanager
def claimed_folder(out: str | None, default_name: str) -> Iterator[Path]:
    """A folder of new results, made now and held by this process while inside.

    What was made here and is still empty in the end is removed.

    Raises:
        UserError: `out` exists and is not an empty folder, cannot be written to, or is held by another process.
    """
    while True:
        folder = new_folder(out, default_name)
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        require_writable(folder)
        try:
            folder.mkdir(exist_ok=folder not in missing)
            break
        except FileExistsError:
            continue  # another process was faster: choose again
    with alone_in(folder):
        try:
            yield folder
        finally:
            with suppress(OSError):  # the first that is not empty ends it, and keeps those above it
                for path in missing:
                    path.rmdir()
