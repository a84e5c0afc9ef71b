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
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_features() -> str:
    """What instructions the processor has, as the system lists them; empty where it does not."""
    return _cpuinfo("flags") or _cpuinfo("Features")


def _cpuinfo(field: str) -> str:
    """The first value of a field of Linux's list of processors."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")
