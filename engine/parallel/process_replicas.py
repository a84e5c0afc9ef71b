"""Several engines on real devices behind a router, each in a process of its own, as one engine.

They run freely, and nobody waits for a step of theirs: requests are routed by what has been heard so far and by what
was sent, and what steps bring is told as it is heard. All processes read the machine's monotonic clock, so whatever a
replica stamps is right here too.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from engine.build import find_device, say_nothing, say_where_kernels_are_missing
from engine.clock import WallClock
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.errors import UserError
from engine.executor.device import available_host_bytes
from engine.kv_cache.sizing import KVBudget
from engine.model.resolve import ModelSource
from engine.parallel.devices import several_devices, share_of_host, share_of_threads
from engine.parallel.replica_devices import ReplicaDevices
from engine.parallel.replica_group import ReplicaGroup
from engine.parallel.replica_handle import ReplicaHandle
from engine.parallel.replica_messages import Sizes, StepNews
from engine.parallel.replica_process import ReplicaTask
from engine.parallel.router import require_router
from engine.parallel.routing import Routing
from engine.request import Request
from engine.scheduler.admission import require_fit, require_known_tokens, require_new
from engine.scheduler.plan import TokenEvent
from engine.trace import IterationRecord

# A call of `step` must not keep its caller from a request that is due, nor cost a core to come back at once.
PATIENCE_S = 0.001
# A first step may compile and capture; nothing that goes well takes longer.
TIMEOUT_S = 300.0


class ProcessReplicas:
    """Implements `engine.serving.ServingEngine` over replicas on real devices, all with the same settings.

    Requests stay where they were routed to. Sizes are those of the replica that has least. When a replica dies, the
    call under way raises `ReplicaFailed`, and every later one too: only `shutdown` is left. Usually made by `load`.

    Invariant: `_where` holds exactly the requests whose end has not been told, by their ids, each with its replica and
    its ticket there.

    Args:
        tasks: one per replica.
        router: a name in `ROUTERS`.
        timeout_s: the longest that a step may take.

    Attributes:
        clock: the machine's.
        devices: in the place of an executor.

    Raises:
        UserError: no such router; as `load`.
        OutOfDeviceMemory, ReplicaFailed: as `load`.
    """

    def __init__(self, tasks: Sequence[ReplicaTask], router: str, timeout_s: float = TIMEOUT_S) -> None:
        self._routing = Routing(router)
        self.clock = WallClock()
        self._scheduler, self._cache = tasks[0].config.scheduler, tasks[0].config.cache
        self._where: dict[str, tuple[ReplicaHandle, int]] = {}
        self._tickets = count()
        self._group = group = ReplicaGroup(tasks, timeout_s)
        self.devices = ReplicaDevices([m.device for m in group.members], group.ask, group.shutdown)
        self._begin([m.sizes for m in group.members])

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        source: ModelSource,
        *,
        size: int,
        router: str,
        longest_request: int = 2,
        say: Callable[[str], None] = say_nothing,
    ) -> "ProcessReplicas":
        """Load a model onto `size` devices.

        Args:
            config: `device` is `cuda`, for `cuda:0` to `cuda:{size - 1}`, or `cpu`, where every replica has its share
                of the threads and of the memory; memory and swap space are each replica's.
            source, longest_request, say: see `engine.build.load_executor`.
            router: a name in `engine.parallel.router.ROUTERS`.

        Raises:
            UserError: no such router, fewer devices than replicas; as `load_executor` and `Engine`.
            OutOfDeviceMemory: as `load_executor` and `Engine`.
            ReplicaFailed: a replica failed otherwise, or died, meanwhile.
        """
        require_router(router)
        device = find_device(config.device)
        devices = several_devices("data_parallel_size", size, device)
        memory_bytes = config.device_memory_bytes
        if device == "cpu" and memory_bytes is None:
            memory_bytes = share_of_host(source, size, config.model.dtype)
        say(f"loading {source.name} onto {size} x {device}")
        # Here and now, so that not all of them compile at once.
        say_where_kernels_are_missing(config, device, say)
        threads, host_bytes = share_of_threads(size), available_host_bytes() // size
        configs = [replace(config, device=one, device_memory_bytes=memory_bytes) for one in devices]
        tasks = [ReplicaTask(i, host_bytes, configs[i], source, longest_request, threads) for i in range(size)]
        return cls(tasks, router)

    @property
    def has_work(self) -> bool:
        """Any request that has not ended."""
        return bool(self._where)

    @property
    def idle_until_ns(self) -> int | None:
        """None: replicas sleep by themselves, and `step` returns soon, whether there is news or not."""
        return None

    @property
    def cache_config(self) -> CacheConfig:
        return self._cache

    @property
    def num_blocks(self) -> int:
        return self._least.num_blocks

    @property
    def num_swap_blocks(self) -> int:
        return self._least.num_swap_blocks

    @property
    def kv_budget(self) -> KVBudget | None:
        return self._least.kv_budget

    @property
    def _least(self) -> Sizes:
        return min((member.sizes for member in self._group.members), key=lambda sizes: sizes.num_blocks)

    def add_request(self, request: Request) -> None:
        """Route a request and send it there. That it is shed is told by an event later, see `Request.shed`.

        Raises:
            RequestRefused: as `Engine.add_request`.
            UserError: its id belongs to a live request, or it has been here before.
            ReplicaFailed: a replica was lost before.
        """
        self._group.require_whole()
        require_new(request)
        require_known_tokens(request, self.devices.vocab_size)
        if request.request_id in self._where:
            raise UserError(f"request_id={request.request_id!r} belongs to a request that has not ended yet")
        member = self._group.members[self._routing.choose(request, self._group.members)]
        require_fit(request, self.devices.max_model_len, member.sizes.num_blocks * self._cache.block_size)
        if request.arrival_ns is None:
            request.arrival_ns = self.clock.now_ns()
        ticket = next(self._tickets)
        self._where[request.request_id] = member, ticket
        member.add(ticket, request)

    def abort(self, request_id: str) -> bool:
        """End a request now; nothing more is told of it. False when there is no such live request."""
        if request_id not in self._where:
            return False
        member, ticket = self._where.pop(request_id)
        member.abort(ticket, self.clock.now_ns(), self._cache.block_size)
        return True

    def step(self) -> tuple[list[TokenEvent], IterationRecord | None]:
        """Hand out what is heard next: what a step of a replica has brought, or that a request was shed.

        Returns:
            As `Engine.step`; nothing where nothing is heard for a moment.

        Raises:
            OutOfDeviceMemory: a replica's step failed so. `reset` makes the engine usable again.
            ReplicaFailed: a step failed otherwise, likewise; or a replica is gone, or silent for too long.
        """
        # While a batch grows a replica has nothing to say.
        heard = self._group.news(PATIENCE_S, silence_s=self._scheduler.max_queue_delay)
        if heard is None:
            return [], None
        member, news = heard
        if isinstance(news, StepNews):
            events, record = member.take_in(news), news.record
        else:
            events, record = member.take_in_shed(news), None
        for event in events:
            if event.finish_reason is not None:
                del self._where[event.request_id]
        return events, record

    def reconfigure(self, *, scheduler: SchedulerConfig | None = None, cache: CacheConfig | None = None) -> None:
        """See `Engine.reconfigure`; on all replicas, or on none. The router forgets.

        Raises:
            ReplicaFailed: a replica was lost, now or before.
        """
        if self.has_work:
            raise RuntimeError("reconfigure needs an idle engine: finish or abort its requests first")
        old, new = (self._scheduler, self._cache), (scheduler or self._scheduler, cache or self._cache)
        sizes = self._group.ask_for_change("reconfigure", new, old)
        self._scheduler, self._cache = new
        self._begin(sizes)

    def reset(self) -> None:
        """See `Engine.reset`; all replicas, and the router forgets. Nothing is told of what was before."""
        self._group.ask("reset")
        self._where.clear()
        self._begin([member.sizes for member in self._group.members])

    def shutdown(self) -> None:
        """Give back all devices; no process is left behind."""
        self._group.shutdown()

    def _begin(self, sizes: Sequence[Sizes]) -> None:
        self._group.forget()
        self._routing.forget(self._cache.block_size)
        for member, its_sizes in zip(self._group.members, sizes, strict=True):
            member.sizes = its_sizes
        links = [each.host_link_bytes_per_s for each in sizes if each.host_link_bytes_per_s is not None]
        self.devices.host_link_bytes_per_s = min(links, default=None)
