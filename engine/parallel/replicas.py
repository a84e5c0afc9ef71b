"""Several simulated engines behind a router, as one engine on one virtual clock.

Each replica has a clock of its own, which its steps move ahead. What a step brings is held back until the common clock
has come to its end, as if the replicas ran side by side: a router then sees of each what could be seen at that moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.clock import VirtualClock
from engine.config import CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.executor.simulated import SimulatedExecutor
from engine.kv_cache.sizing import KVBudget
from engine.parallel.routing import Routed, Routing
from engine.request import Request
from engine.scheduler.plan import TokenEvent
from engine.trace import IterationRecord


@dataclass(slots=True)
class _Running:
    """A step under way: until when, and what it will have brought by then."""

    end_ns: int
    events: list[TokenEvent]
    record: IterationRecord


class _Replica(Routed[str]):
    """One engine, its requests by their ids.

    Attributes:
        running: its step under way; None between steps.
    """

    def __init__(self, number: int, engine: Engine, executor: SimulatedExecutor) -> None:
        super().__init__(number)
        self.engine = engine
        self.executor = executor
        self.running: _Running | None = None

    def begin_step(self, now_ns: int) -> None:
        self.executor.clock.sleep_until(now_ns)
        events, record = self.engine.step()
        self.kv_blocks_used = record.kv_blocks_used
        self.running = _Running(self.executor.clock.now_ns(), events, replace(record, replica=self.number))

    def idle_until_ns(self, now_ns: int) -> int | None:
        """When there will be something to do for it, `now_ns` when there is already; None when it is idle."""
        if self.running is not None:
            return max(self.running.end_ns, now_ns)
        if not self.engine.has_work:
            return None
        until_ns = self.engine.idle_until_ns
        return now_ns if until_ns is None else max(until_ns, now_ns)

    def clear(self) -> None:
        """See `Routed.clear`."""
        super().clear()
        self.running = None


class ReplicatedEngine:
    """Implements `engine.serving.ServingEngine` over replicas on simulated devices, all with the same settings.

    Requests are routed as they are added, and stay where they are. Sizes are one replica's. Deterministic: replicas
    that have something to do at the same time do it in the order of their numbers.

    Args:
        executors: of the replicas, at least one.
        scheduler, cache: as of `engine.engine.Engine`.
        router: a name in `ROUTERS`.

    Raises:
        UserError: no such router; or as `Engine`.
    """

    def __init__(
        self, executors: Sequence[SimulatedExecutor], scheduler: SchedulerConfig, cache: CacheConfig, router: str
    ) -> None:
        self._routing = Routing(router)
        self._replicas = [_Replica(i, Engine(e, scheduler, cache), e) for i, e in enumerate(executors)]
        self.restart()

    @property
    def clock(self) -> VirtualClock:
        """The time up to which everything that happened has been told."""
        return self._clock

    @property
    def has_work(self) -> bool:
        """Any request that has not ended."""
        return any(replica.live for replica in self._replicas)

    @property
    def idle_until_ns(self) -> int | None:
        """See `Engine.idle_until_ns`: the end of the first step under way, when all that can run do."""
        now_ns = self._clock.now_ns()
        times = [replica.idle_until_ns(now_ns) for replica in self._replicas]
        until_ns = min((time for time in times if time is not None), default=now_ns)
        return until_ns if until_ns > now_ns else None

    @property
    def cache_config(self) -> CacheConfig:
        return self._replicas[0].engine.cache_config

    @property
    def num_blocks(self) -> int:
        return self._replicas[0].engine.num_blocks

    @property
    def num_swap_blocks(self) -> int:
        return self._replicas[0].engine.num_swap_blocks

    @property
    def kv_budget(self) -> KVBudget | None:
        return self._replicas[0].engine.kv_budget

    def add_request(self, request: Request) -> None:
        """Route a request and queue it there.

        Raises:
            RequestRefused, RequestShed: as `Engine.add_request`.
        """
        replica = self._replicas[self._routing.choose(request, self._replicas)]
        replica.executor.clock.sleep_until(self._clock.now_ns())
        replica.engine.add_request(request)
        replica.live[request.request_id] = request

    def abort(self, request_id: str) -> bool:
        """End a request now. False when there is no such live request."""
        for replica in self._replicas:
            if request_id not in replica.live:
                continue
            del replica.live[request_id]
            replica.engine.abort(request_id)
            running = replica.running
            if running is not None:
                running.events = [event for event in running.events if event.request_id != request_id]
                if not replica.live:
                    replica.running = None
            return True
        return False

    def step(self) -> tuple[list[TokenEvent], IterationRecord | None]:
        """Begin steps on the replicas that can, or hand out what the first step to end has brought.

        Returns:
            As `Engine.step`; no events and no record where steps have only begun.
        """
        if self._begin_steps():
            return [], None
        until_ns = self.idle_until_ns
        if until_ns is not None:
            self._clock.sleep_until(until_ns)
            if self._begin_steps():
                return [], None
        ends = [(r.running.end_ns, r.number) for r in self._replicas if r.running is not None]
        if not ends or min(ends)[0] > self._clock.now_ns():
            return [], None
        replica = self._replicas[min(ends)[1]]
        running, replica.running = replica.running, None
        assert running is not None
        for event in running.events:
            if event.finish_reason is not None:
                del replica.live[event.request_id]
        return running.events, running.record

    def _begin_steps(self) -> bool:
        now_ns = self._clock.now_ns()
        ready = [r for r in self._replicas if r.running is None and r.idle_until_ns(now_ns) == now_ns]
        for replica in ready:
            replica.begin_step(now_ns)
        return bool(ready)

    def reconfigure(self, *, scheduler: SchedulerConfig | None = None, cache: CacheConfig | None = None) -> None:
        """See `Engine.reconfigure`; all replicas, and the router forgets."""
        if self.has_work:
            raise RuntimeError("reconfigure needs an idle engine: finish or abort its requests first")
        for replica in self._replicas:
            replica.engine.reconfigure(scheduler=scheduler, cache=cache)
        self._forget()

    def reset(self) -> None:
        """See `Engine.reset`; all replicas, and the router forgets."""
        for replica in self._replicas:
            replica.engine.reset()
        self._forget()

    def restart(self, seed: int = 0) -> None:
        """Begin a run at time 0; see `SimulatedExecutor.restart`. Each replica draws from a seed of its own."""
        for replica in self._replicas:
            replica.executor.restart(seed * len(self._replicas) + replica.number)
        self._clock = VirtualClock()
        self.reset()

    def _forget(self) -> None:
        for replica in self._replicas:
            replica.clear()
        self._routing.forget(self.cache_config.block_size)
