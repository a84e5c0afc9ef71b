"""Time. Everything that reads time takes a clock, so that the same code runs for real and simulated."""

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time in nanoseconds from an arbitrary origin."""

    def now_ns(self) -> int:
        """The present time."""
        ...

    def sleep_until(self, t_ns: int) -> None:
        """Return when `now_ns() >= t_ns`; at once if that is already so."""
        ...


class WallClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def sleep_until(self, t_ns: int) -> None:
        while (left_ns := t_ns - time.monotonic_ns()) > 0:
            time.sleep(left_ns / 1e9)


class VirtualClock:
    """A clock that moves only when told: by a simulated step, or by a driver that skips an idle gap.

    Same seed and virtual clock give byte-identical records.
    """

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def sleep_until(self, t_ns: int) -> None:
        self._now_ns = max(self._now_ns, t_ns)

    def advance(self, duration_ns: int) -> None:
        """Move forward by `duration_ns` (>= 0)."""
        if duration_ns < 0:
            raise ValueError(f"a clock cannot run backwards: advance({duration_ns})")
        self._now_ns += duration_ns
