"""What a driver needs of an engine, and what it gives back."""

from dataclasses import dataclass

from engine.trace import IterationRecord
from workloads.metrics import Window
from workloads.records import Phase, RequestRecord


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    Attributes:
        phase: of the schedule.
        elapsed_s, planned_s: time since the start; warm-up and window together.
        ended, under_way: requests of all phases.
    """

    phase: Phase
    elapsed_s: float
    planned_s: float
    ended: int
    under_way: int


@dataclass(frozen=True, slots=True)
class DriveResult:
    """What a run produced.

    Attributes:
        requests: by index, those of warm-up and cooldown included.
        iterations: every step.
        window: the measured part; it ends early where the run did.
        stopped_early: None, or why, in the words of `workloads.early_stop`.
    """

    requests: list[RequestRecord]
    iterations: list[IterationRecord]
    window: Window
    stopped_early: str | None


class DriveError(Exception):
    """A step failed. The cause is `__cause__`; what was measured until then is not lost.

    Attributes:
        partial: all that was recorded; the requests that were under way are `failed`.
    """

    def __init__(self, cause: Exception, partial: DriveResult) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.partial = partial
