"""What a person sees while a study runs: phase, trial, rate, time left, best so far. Always on standard error."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tuner.units import format_duration
from workloads.driver import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class ProgressDisplay:
    """Lines that stay, and on a terminal one line below them that moves.

    Args:
        console: where to write; without a terminal only the lines are written.
        time_left_s: seconds of the budget that are left; None for no budget.
    """

    def __init__(self, console: "Console", time_left_s: Callable[[], float | None] = lambda: None) -> None:
        self.console = console
        self.time_left_s = time_left_s
        self.phase = ""
        self.best = ""
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._started_s = time.monotonic()

    @contextmanager
    def live(self) -> Iterator["ProgressDisplay"]:
        """Show the moving line while inside."""
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[after]}"),
        )
        with RichProgress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as bar:
            self._bar = bar
            try:
                yield self
            finally:
                self._bar = self._task = None

    def say(self, text: str) -> None:
        """A line that stays, with the time since the start."""
        elapsed = format_duration(time.monotonic() - self._started_s)
        self.console.print(f"[{elapsed:>7}] {text}", markup=False, highlight=False, soft_wrap=True)

    def run_started(self, what: str) -> Callable[[Progress], None]:
        """A run begins; returns what to call with its progress."""
        bar = self._bar
        if bar is None:
            return lambda progress: None
        if self._task is not None:
            bar.remove_task(self._task)
        task = self._task = bar.add_task(what, total=1.0, after="")

        def update(progress: Progress) -> None:
            share = progress.elapsed_s / progress.planned_s if progress.planned_s else 0.0
            left = self.time_left_s()
            parts = [
                progress.phase,
                f"{progress.under_way} under way",
                "" if left is None else f"{format_duration(left)} left",
                self.best,
            ]
            bar.update(task, completed=min(1.0, share), after="  ".join(p for p in parts if p))

        return update

    def thinking(self, what: str, share: float) -> None:
        """Something between two runs takes a while: `share` of it is done."""
        if self._bar is None:
            return
        if self._task is None:
            self._task = self._bar.add_task(what, total=1.0, after=self.best)
        self._bar.update(self._task, completed=share)

    def run_ended(self) -> None:
        """Take the moving line away."""
        if self._bar is not None and self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
