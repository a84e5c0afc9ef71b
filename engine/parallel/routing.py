"""What is known of replicas when a request is routed: the requests sent to each, and how full its KV cache was last."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from engine.parallel.router import ROUTERS, ReplicaLoad, require_router
from engine.request import Request, RequestStatus

Key = TypeVar("Key", str, int)


@dataclass(slots=True, eq=False)
class Routed(Generic[Key]):
    """A replica as it is known from outside.

    Attributes:
        number: 0 for the first.
        live: requests sent to it whose end has not been told yet, by whatever key tells them apart.
        kv_blocks_used: as its last step left it.
    """

    number: int
    live: dict[Key, Request] = field(default_factory=dict)
    kv_blocks_used: int = 0

    def load(self, block_size: int) -> ReplicaLoad:
        """What a router goes by."""
        if not self.live:
            return ReplicaLoad(0, 0)
        running = RequestStatus.RUNNING
        queued_tokens = sum(request.num_tokens for request in self.live.values() if request.status is not running)
        return ReplicaLoad(len(self.live), self.kv_blocks_used * block_size + queued_tokens)

    def clear(self) -> None:
        """Nothing is there."""
        self.live.clear()
        self.kv_blocks_used = 0


class Routing:
    """A router over replicas, which begins anew whenever they do. `forget` comes first.

    Args:
        name: of a policy in `ROUTERS`.

    Raises:
        UserError: no such policy.
    """

    def __init__(self, name: str) -> None:
        require_router(name)
        self._name = name

    def forget(self, block_size: int) -> None:
        """Begin anew, with replicas of so many tokens per block."""
        self._block_size = block_size
        self._router = ROUTERS[self._name](block_size)

    def choose(self, request: Request, replicas: Sequence[Routed]) -> int:
        """The replica for a request that arrives now, which is told."""
        number = self._router.choose(request, [replica.load(self._block_size) for replica in replicas])
        request.replica = number
        return number
