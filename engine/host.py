"""What the machine calls itself, and where it keeps things. Imports no torch: records of simulated runs say it too."""

import os
import platform
from pathlib import Path


def cache_root() -> Path:
    """What is made or fetched once: `$TUNE_CACHE`, else `tune` in the user's cache folder."""
    if tune_cache := os.environ.get("TUNE_CACHE"):
        return Path(tune_cache).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tune"


def cpu_name() -> str:
    """The processor's name for people."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
