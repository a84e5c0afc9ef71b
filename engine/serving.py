"""What whoever brings requests to an engine needs of it."""

from typing import Protocol

from engine.clock import Clock
from engine.request import Request
from engine.scheduler.plan import TokenEvent
from engine.trace import IterationRecord


class ServingEngine(Protocol):
    """An engine as the drivers and the server see it. See `engine.engine.Engine`."""

    @property
    def clock(self) -> Clock: ...

    @property
    def has_work(self) -> bool: ...

    @property
    def idle_until_ns(self) -> int | None: ...

    def add_request(self, request: Request) -> None:
        """As `Engine.add_request`. That a request is shed may also be told later, by an event; see `Request.shed`."""
        ...

    def abort(self, request_id: str) -> bool: ...

    def step(self) -> tuple[list[TokenEvent], IterationRecord | None]:
        """As `Engine.step`. No record where no step has ended: of several engines that run at once, steps may only
        have begun, or nothing may have been heard yet."""
        ...
