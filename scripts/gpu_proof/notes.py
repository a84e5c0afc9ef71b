"""What a part has measured so far, on disk after every figure, so that a crash or a limit takes nothing away."""

import json
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workloads.records import write_atomic


class Notes:
    """The results of one part.

    Args:
        path: of the JSON that they are written to.
        beside: path without a suffix beside which the part may leave files that are kept.

    Attributes:
        error: traceback of the first attempt that failed; None for none.
    """

    def __init__(self, path: Path, beside: Path) -> None:
        self.beside = beside
        self.error: str | None = None
        self._path = path
        self._rows: list[Mapping[str, Any]] = []
        self._values: dict[str, Any] = {}

    def add(self, what: str, found: str, **figures: object) -> None:
        """A row.

        Args:
            what, found: for people.
            figures: the same in numbers; none is NaN or infinite.
        """
        self._rows.append({"what": what, "found": found, **figures})
        self._write()
        print(f"  {what}: {found}", flush=True)

    def set(self, **values: object) -> None:
        """What is true of all rows."""
        self._values |= values
        self._write()

    @contextmanager
    def attempt(self, what: str, **figures: object) -> Iterator[None]:
        """Whatever fails inside becomes a row with its traceback as `error`, and the part goes on.

        Args:
            what, figures: of that row.
        """
        try:
            yield
        except Exception as error:
            text = traceback.format_exc()
            self.error = self.error or text
            reason = str(error).strip().partition("\n")[0]
            self.add(what, f"failed: {type(error).__name__}: {reason}", error=text, **figures)

    def _write(self) -> None:
        text = json.dumps({**self._values, "rows": self._rows}, allow_nan=False)
        write_atomic(self._path, text)


def read_notes(path: Path) -> dict[str, Any]:
    """What was written; no rows where nothing was."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
