"""How much measuring is left."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Budget:
    """A limit of wall time, over all resumptions of a study. The clock is a parameter for tests.

    Attributes:
        total_s: None for no limit.
        spent_before_s: by earlier processes.
    """

    total_s: float | None
    spent_before_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _started_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._started_s = self.clock()

    @property
    def spent_s(self) -> float:
        return self.spent_before_s + self.clock() - self._started_s

    @property
    def left_s(self) -> float | None:
        """Seconds left, None without a limit."""
        return None if self.total_s is None else self.total_s - self.spent_s

    def allows(self, seconds: float) -> bool:
        """Whether so many seconds are left."""
        return self.total_s is None or self.total_s - self.spent_s >= seconds
