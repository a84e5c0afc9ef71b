"""Many independent pieces of work, over processes, each result kept as soon as it is there."""

import gc
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

Piece = TypeVar("Piece")
Result = TypeVar("Result")
Say = Callable[[str], None]


def each(
    work: Callable[[Piece], Result], pieces: Sequence[Piece], processes: int, title: str
) -> Iterator[tuple[Piece, Result]]:
    """Every piece with its result, in the order in which they are ready; on a terminal with a moving line.

    Args:
        work: a function of a module, so that another process can find it.
        processes: to work in; 1 works here.
        title: of the moving line.
    """
    from rich.progress import track

    yield from track(_each(work, pieces, processes), description=f"{title:<24}", total=len(pieces))


def _each(work: Callable[[Piece], Result], pieces: Sequence[Piece], processes: int) -> Iterator[tuple[Piece, Result]]:
    if processes == 1:
        make_ready()
        for piece in pieces:
            yield piece, work(piece)
        return
    # Several processes that each use all cores would only stand in each other's way.
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(processes, initializer=make_ready) as pool:
        futures = {pool.submit(work, piece): piece for piece in pieces}
        for future in as_completed(futures):
            yield futures.pop(future), future.result()


def say_on(console: "Console") -> Say:
    """Says lines on a terminal as they are, without colours for numbers."""
    return lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True)


def make_ready() -> None:
    """Load what studies need, and keep it out of the garbage collection that begins every run."""
    import optuna
    import pandas as pd  # noqa: F401
    import scipy.optimize
    import scipy.stats  # noqa: F401

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    gc.collect()
    gc.freeze()


class Ledger:
    """A file of JSON lines, one per finished piece of work, so that an interrupted proof goes on where it was.

    Args:
        path: of the file, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[str, Any] = {}
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for line in text.splitlines():
            # A process that was killed may have left half of one.
            with suppress(ValueError):
                entry = json.loads(line)
                self._lines[entry["key"]] = entry["result"]
        self._before = "\n" if text and not text.endswith("\n") else ""

    def __contains__(self, key: str) -> bool:
        return key in self._lines

    def __getitem__(self, key: str) -> Any:
        return self._lines[key]

    def add(self, key: str, result: Mapping[str, Any]) -> None:
        """Keep a result."""
        self._lines[key] = result
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{self._before}{json.dumps({'key': key, 'result': result}, separators=(',', ':'))}\n")
        self._before = ""


def make_all(
    work: Callable[[Piece], Any], keys: Mapping[Piece, str], ledger: Ledger, processes: int, title: str
) -> dict[Piece, Any]:
    """The result of every piece, in their order; those that the ledger lacks are made and kept there.

    Args:
        work, processes: as in `each`.
        keys: of the pieces in the ledger.
        title: of the moving line; `{}` in it is how many are made.
    """
    still_open = [piece for piece, key in keys.items() if key not in ledger]
    if still_open:
        for piece, found in each(work, still_open, processes, title.format(len(still_open))):
            ledger.add(keys[piece], found)
    return {piece: ledger[key] for piece, key in keys.items()}
