"""What the host does with its time in a step, for whoever measures it. Costs next to nothing while nobody does."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

from engine.trace import Phase, PhaseMark

_NOTHING = nullcontext()


class HostPhases:
    """Marks phases while there is a listener.

    Attributes:
        listener: told each phase when it has ended; None for nobody.
        iteration: the step that the host is busy with; the engine keeps it.
    """

    def __init__(self) -> None:
        self.listener: Callable[[PhaseMark], None] | None = None
        self.iteration = 0

    def during(self, phase: Phase) -> AbstractContextManager[object]:
        """Whatever is done inside belongs to a phase."""
        return _NOTHING if self.listener is None else _Marking(self.listener, self.iteration, phase)


class _Marking(AbstractContextManager[None]):
    def __init__(self, listener: Callable[[PhaseMark], None], iteration: int, phase: Phase) -> None:
        self._listener = listener
        self._iteration = iteration
        self._phase = phase

    def __enter__(self) -> None:
        self._begin_ns = time.monotonic_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener(PhaseMark(self._iteration, self._phase, self._begin_ns, time.monotonic_ns()))
