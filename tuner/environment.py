"""What a measurement ran on, for the record: machine, versions, device."""

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from engine.host import cpu_name

PACKAGE = "tune"


def tool_version() -> str:
    """The installed version of this tool."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "0+unknown"


def environment() -> dict[str, Any]:
    """The `environment` of `run.json`."""
    import psutil

    return {
        "python": platform.python_version(),
        "torch": _version_of("torch"),
        "optuna": _version_of("optuna"),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "git_commit": _git_commit(),
    }


def cuda_driver() -> str | None:
    """The NVIDIA driver's version; None without one."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            driver = pynvml.nvmlSystemGetDriverVersion()
            return driver.decode() if isinstance(driver, bytes) else driver
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit of the checkout that this code runs from, with a mark when it was changed since."""
    here = Path(__file__).resolve().parent
    if "site-packages" in here.parts or sys.flags.isolated:
        return None
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
