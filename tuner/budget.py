"""How much measuring is left."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.errors import UserError
from tuner.units import format_duration


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

    def require(self, needed_s: float) -> None:
        """Refuse a budget that does not even suffice for the baseline.

        Raises:
            UserError: fewer than `needed_s` are left.
        """
        if self.total_s is not None and not self.allows(needed_s):
            left_s = self.total_s - self.spent_s
            raise UserError(
                f"--budget {format_duration(self.total_s)} is too short: the baseline alone needs about "
                f"{format_duration(needed_s)}, and {format_duration(left_s)} are left; give several times that, or a "
                "shorter --window"
            )

    def allows(self, seconds: float) -> bool:
        """Whether so many seconds are left."""
        return self.total_s is None or self.total_s - self.spent_s >= seconds
