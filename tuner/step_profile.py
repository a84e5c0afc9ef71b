"""Watches the steps of a run's window: first what the host does, then, as that slows the host, torch's own trace."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from engine.host_phases import HostPhases
from engine.trace import PhaseMark
from workloads.driver import Progress

if TYPE_CHECKING:
    from torch.profiler import profile


class StepProfile:
    """Watch a run by its progress.

    Args:
        phases: of the engine that serves it.
        length_s: how long to note the host's phases, and after that to trace.

    Attributes:
        marks: the host's phases.
    """

    def __init__(self, phases: HostPhases, length_s: float) -> None:
        self.marks: list[PhaseMark] = []
        self._phases = phases
        self._length_s = length_s
        self._started_s: float | None = None
        self._traced_from_s: float | None = None
        self._profiler: profile | None = None
        self._is_over = False

    def update(self, progress: Progress) -> None:
        """Go on to what the time asks for. Called between two steps."""
        if self._is_over:
            return
        if progress.phase != "window":
            if self._started_s is not None:
                self.close()
            return
        if self._started_s is None:
            self._started_s = progress.elapsed_s
            self._phases.listener = self.marks.append
        elapsed_s = progress.elapsed_s - self._started_s
        if self._profiler is None:
            if elapsed_s >= self._length_s:
                self._phases.listener = None
                self._profiler = _start_profiler()
        elif self._traced_from_s is None:
            # To start takes a second or so, in which nothing runs.
            self._traced_from_s = elapsed_s
        elif elapsed_s - self._traced_from_s >= self._length_s:
            self.close()

    def close(self) -> None:
        """Stop watching."""
        if not self._is_over and self._profiler is not None:
            self._profiler.stop()
        self._is_over = True
        self._phases.listener = None

    def write_trace(self, file: Path) -> bool:
        """After `close`: write the trace, if there is one, as `.json.gz`. Takes a while, so not while requests run."""
        if self._profiler is None:
            return False
        self._profiler.export_chrome_trace(str(file))
        return True


def _start_profiler() -> "profile":
    # Else the profiler's library prints lines of its own on the terminal.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(activities=activities)
    profiler.start()
    return profiler
