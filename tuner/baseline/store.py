"""The folder of all baselines: their names, and how one appears in it, grows and goes."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.errors import UserError
from reports.diff.load import BASELINE_FILE
from reports.diff.side import SideRun
from tuner.baseline.files import Origin, fill, store_run, write_record
from tuner.baseline.record import SAME, Baseline
from tuner.lock import alone_in
from tuner.store import RUNS_FOLDER

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def require_name(name: str) -> str:
    """The name again.

    Raises:
        UserError: it is none for a baseline.
    """
    if _NAME.fullmatch(name) is None:
        raise UserError(
            f"{name!r} is no name for a baseline: use letters, digits and . _ -, with a letter or digit first, such "
            "as main or release-1.2"
        )
    return name


def open_baseline(store: Path, name: str) -> Baseline:
    """A baseline by its name.

    Raises:
        UserError: no such baseline, or a damaged one.
    """
    return Baseline.load(folder_of(store, name))


def folder_of(store: Path, name: str) -> Path:
    """The folder of a baseline that is there.

    Raises:
        UserError: no such baseline.
    """
    folder = store / require_name(name)
    if not (folder / BASELINE_FILE).is_file():
        there = f"there are {', '.join(names)}" if (names := names_in(store)) else "there is none yet"
        raise UserError(f"no baseline {name!r} in {str(store)!r}: {there}; tune baseline save makes one")
    return folder


def names_in(store: Path) -> list[str]:
    """The names of all baselines in a store, in alphabetical order."""
    try:
        return sorted(
            path.name for path in store.iterdir() if _NAME.fullmatch(path.name) and (path / BASELINE_FILE).is_file()
        )
    except OSError:
        return []


def require_new(store: Path, name: str, *, replace: bool) -> Path:
    """The folder of a baseline to be made.

    Raises:
        UserError: it cannot have that name, or has it already and is not to be replaced.
    """
    folder = store / require_name(name)
    if folder.is_symlink():
        raise UserError(f"{str(folder)!r} is a link to another folder, which is not replaced: choose another name")
    if folder.exists() and not (folder / BASELINE_FILE).is_file():
        raise UserError(f"{str(folder)!r} is there and no baseline, so it is not replaced: choose another name")
    if folder.exists() and not replace:
        raise UserError(
            f"the baseline {name!r} exists already: --force replaces it, tune baseline repeat {name} measures it again"
        )
    return folder


def require_place(folder: Path) -> None:
    """Find out before measuring that a baseline can be written to its place.

    Args:
        folder: of the baseline, there or not.

    Raises:
        UserError: it cannot, or another process is at work there.
    """
    # The store itself is made with its first baseline.
    there = next(path for path in folder.absolute().parents if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise UserError(f"cannot write the baseline to {str(folder)!r}: {error.strerror or error}") from error
    with alone_in(folder.parent), alone_in(folder):
        pass


@contextmanager
def growing(baseline: Baseline) -> Iterator[None]:
    """Hold a baseline to which runs are to be added.

    Raises:
        UserError: it cannot be written to, or another process is at work on it.
    """
    with alone_in(baseline.path):
        try:
            with tempfile.TemporaryFile(dir=baseline.path), tempfile.TemporaryFile(dir=baseline.path / RUNS_FOLDER):
                pass
        except OSError as error:
            raise UserError(f"cannot write to {str(baseline.path)!r}: {error.strerror or error}") from error
        yield


def create(folder: Path, origin: Origin, runs: Sequence[SideRun], *, replace: bool = False) -> Baseline:
    """Write a baseline into its store, which nobody else changes meanwhile.

    Raises:
        UserError: as `write_baseline`; or another process is at work on the store or on the baseline to replace.
    """
    require_new(folder.parent, folder.name, replace=replace)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {str(folder.parent)!r}: {error.strerror or error}") from error
    with alone_in(folder.parent), alone_in(folder):
        return write_baseline(folder, origin, runs)


def write_baseline(folder: Path, origin: Origin, runs: Sequence[SideRun]) -> Baseline:
    """Write a baseline's folder, whole or not at all; what is there already is replaced.

    Args:
        folder: its name is the baseline's.
        runs: at least one, all of the same settings under the same load.

    Raises:
        UserError: the runs differ, a learnt device's file cannot be read, or the file system refuses.
    """
    _require_alike([run.record.meta for run in runs])
    try:
        with _growing(folder) as partial:
            fill(partial, folder.name, origin, runs)
            _put(partial, folder)
    except OSError as error:
        raise UserError(f"cannot write the baseline to {str(folder)!r}: {error.strerror or error}") from error
    return Baseline.load(folder)


def add_run(baseline: Baseline, run: SideRun) -> Baseline:
    """Add a run to a baseline; it is in the record only when all of it is on disk.

    Raises:
        UserError: the run is not like the others, or the file system refuses.
    """
    _require_alike([dict(baseline.record), run.record.meta])
    try:
        numbers = (path.name.partition("-")[0] for path in (baseline.path / RUNS_FOLDER).iterdir())
        number = 1 + max((int(n) for n in numbers if n.isdecimal()), default=0)
        runs = [*baseline.record["runs"], store_run(baseline.path, number, run, baseline.record["target"]["device"])]
        record = dict(baseline.record) | {"runs": runs}
        write_record(baseline.path, record)
    except OSError as error:
        raise UserError(f"cannot write to {str(baseline.path)!r}: {error.strerror or error}") from error
    return Baseline(baseline.path, record)


def remove(store: Path, name: str) -> None:
    """Remove a baseline.

    Raises:
        UserError: no such baseline, or one that is being measured.
    """
    folder = folder_of(store, name)
    try:
        with alone_in(store), alone_in(folder):
            _remove_whole(folder)
    except OSError as error:
        raise UserError(f"cannot remove {str(folder)!r}: {error.strerror or error}") from error


def _require_alike(metas: Sequence[Mapping[str, Any]]) -> None:
    for key in SAME:
        if any(meta[key] != metas[0][key] for meta in metas):
            raise UserError(f"the runs differ in their {key}, and those of a baseline have one: save one of them alone")


@contextmanager
def _growing(folder: Path) -> Iterator[Path]:
    """A temporary folder beside the place; what is still there in the end is removed."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / RUNS_FOLDER).mkdir(parents=True)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put(partial: Path, folder: Path) -> None:
    """Rename into place. A folder cannot replace another that holds something, so that one is renamed away first."""
    if folder.exists():
        old = folder.with_name(f".{folder.name}.{os.getpid()}.replaced")
        folder.rename(old)
        partial.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        partial.rename(folder)


def _remove_whole(folder: Path) -> None:
    if folder.is_symlink():
        folder.unlink()
        return
    gone = folder.with_name(f".{folder.name}.{os.getpid()}.removed")
    folder.rename(gone)
    shutil.rmtree(gone)
