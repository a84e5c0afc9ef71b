"""What commands print at their end."""

import json
import sys
from pathlib import Path
from typing import Any

from engine.errors import UserError
from reports.study import STUDY_FILE


def print_summary(folder: Path) -> None:
    """A run's or a study's summary on standard output."""
    from rich.console import Console

    from reports.study import load_run, load_study
    from reports.terminal import run_summary, study_summary

    if (folder / STUDY_FILE).is_file():
        summary = study_summary(load_study(folder).study, folder)
    else:
        summary = run_summary(load_run(folder))
    Console().print(summary)


def print_json(content: dict[str, Any]) -> None:
    """Machine-readable output, alone on standard output."""
    json.dump(content, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def new_folder(out: str | None, default_name: str) -> Path:
    """The folder of a new run or study: `out`, or a fresh one under `runs/`. It is not made here.

    Raises:
        UserError: `out` exists and is not an empty folder.
    """
    if out is None:
        base = Path("runs") / default_name
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
