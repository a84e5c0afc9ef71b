"""Steps that were launched and whose tokens have not come back yet."""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from engine.executor.base import StepHandle, StepResult
from engine.scheduler.plan import StepPlan

MOST_UNDER_WAY = 2
"""One that the device works on, and one that it can go on with."""


@dataclass(frozen=True, slots=True)
class StepUnderWay:
    """A launched step.

    Attributes:
        plan, handle: what was launched, and what to wait for.
        t_start: before it was planned, by the engine's clock.
        t_execute: before it was launched.
    """

    plan: StepPlan
    handle: StepHandle
    t_start: int
    t_execute: int


class StepsUnderWay:
    """A queue of them: the first to be launched is the first to be done."""

    def __init__(self) -> None:
        self._steps: deque[StepUnderWay] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def has_room(self) -> bool:
        """Whether another step may be launched."""
        return len(self._steps) < MOST_UNDER_WAY

    def append(self, step: StepUnderWay) -> None:
        """A step was launched."""
        self._steps.append(step)

    def wait(self) -> tuple[StepUnderWay, StepResult]:
        """The oldest step and its result; it is under way no longer, even when it failed."""
        step = self._steps.popleft()
        return step, step.handle.wait()

    def give_up(self) -> None:
        """Wait for all that is under way, whatever comes of it."""
        while self._steps:
            # What was launched after a step that failed fails too, and the error has been told.
            with suppress(Exception):
                self.wait()
