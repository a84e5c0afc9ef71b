"""Programs that start processes and end, whether they say so or not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
either_end = pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "pass"], ids=["killed", "exits"])


def assert_nothing_outlives(program: str, end: str, folder: Path) -> None:
    """Run a program that says `loaded` before its `{end}`; its processes must end with it, and without a word."""
    file = folder / "program.py"
    file.write_text(program.format(end=end))
    # They hold the same standard output, so this returns only when they have ended too.
    done = subprocess.run(
        [sys.executable, file],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == "loaded\n", done.stderr
    assert done.returncode == (-signal.SIGKILL if "kill" in end else 0), done.stderr
    assert "Traceback" not in done.stderr
