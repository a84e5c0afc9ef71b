"""Runs a part in a process of its own: a kernel that fails leaves a CUDA context of which nothing is to be had."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from scripts.gpu_proof.notes import read_notes
from scripts.gpu_proof.parts import Part

ROOT = Path(__file__).resolve().parents[2]
DONE, FAILED, OUT_OF_TIME, INTERRUPTED, DIED = "done", "failed", "out of time", "interrupted", "died"
# From being asked to stop, with time to write a report, to being killed.
_GRACE_S = 20.0
_STDERR_CHARACTERS = 8000


def run_part(part: Part, *, limit_s: float, beside: Path, dry_run: bool) -> dict[str, Any]:
    """Measure a part.

    Args:
        limit_s: seconds after which it is stopped; what it has measured by then counts.
        beside: see `Notes`.
        dry_run: on the CPU, kernels interpreted, even where there is a card.

    Returns:
        Its notes, with `title`, `state` (`done`, `failed` with its traceback as `error`, `out of time`, `interrupted`
        by Ctrl-C, or `died` without a word), `seconds`, `limit_s`, `exit_code` and the end of `stderr` (null when it
        was done).
    """
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    if dry_run:
        environment |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as folder:
        notes, stderr = Path(folder, "notes.json"), Path(folder, "stderr")
        command = [sys.executable, "-m", "scripts.gpu_proof.worker", part.module, str(notes), str(beside.resolve())]
        start = time.monotonic()
        with stderr.open("wb") as errors:
            process = subprocess.Popen(
                command + ["--dry-run"] * dry_run,
                cwd=ROOT,
                env=environment,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                stopped = _wait(process, limit_s)
            finally:
                _signal(process, signal.SIGKILL)
                process.wait()
        seconds = time.monotonic() - start
        found = read_notes(notes)
        state = stopped or _state(found)
        text = stderr.read_text(encoding="utf-8", errors="replace")[-_STDERR_CHARACTERS:]
    return {
        "title": part.title,
        "state": state,
        "seconds": round(seconds, 1),
        "limit_s": limit_s,
        "exit_code": process.returncode,
        "stderr": None if state == DONE else text,
        **found,
    }


def _state(found: dict[str, Any]) -> str:
    if "error" not in found:
        return DIED
    return DONE if found["error"] is None else FAILED


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> str | None:
    """Until the process has ended, or was asked to and had its time; why it was asked to, None where it was not."""
    try:
        process.wait(limit_s)
        return None
    except subprocess.TimeoutExpired:
        reason = OUT_OF_TIME
    except KeyboardInterrupt:
        reason = INTERRUPTED
    _signal(process, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    return reason


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To a part that still runs and to all that it started."""
    if process.poll() is None:
        os.killpg(process.pid, number)
