"""What the machine calls itself. Imports no torch, so that records of simulated runs can say it too."""

import platform
from pathlib import Path


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
