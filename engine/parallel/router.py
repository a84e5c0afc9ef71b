"""Which replica serves a request: policies over what is known of the replicas at its arrival. Pure logic, no torch."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from engine.errors import UserError
from engine.kv_cache.manager import hash_blocks
from engine.request import Request

# Where a prefix lies is forgotten when so many other blocks were routed since; a replica's cache hardly holds more.
_MOST_BLOCKS = 1 << 18
# A cached prefix is given up for a shorter queue when its replica has more than both of these over the least busy one.
_MORE_REQUESTS = 8
_TIMES_REQUESTS = 1.5


class ReplicaLoad(NamedTuple):
    """A replica as a router sees it.

    Attributes:
        in_flight: requests sent to it that have not ended.
        kv_tokens: tokens of its KV cache that are in use, and those that the requests in its queue will need.
    """

    in_flight: int
    kv_tokens: int


class Router(Protocol):
    """A policy. It may remember what it has decided; the same requests and loads give the same decisions."""

    def choose(self, request: Request, loads: Sequence[ReplicaLoad]) -> int:
        """The replica for a request that arrives now, one of `0 .. len(loads) - 1`."""
        ...


class RoundRobin:
    """One after the other, whatever they are doing."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: Request, loads: Sequence[ReplicaLoad]) -> int:
        """See `Router.choose`."""
        choice = self._next % len(loads)
        self._next = choice + 1
        return choice


class LeastInFlight:
    """The one with the fewest requests that have not ended; in turn where several have."""

    def __init__(self) -> None:
        self._turn = _Turn()

    def choose(self, request: Request, loads: Sequence[ReplicaLoad]) -> int:
        """See `Router.choose`."""
        return self._turn.least([load.in_flight for load in loads])


class LeastKV:
    """The one whose KV cache has the least to hold, now and for those in its queue; in turn where several are equal."""

    def __init__(self) -> None:
        self._turn = _Turn()

    def choose(self, request: Request, loads: Sequence[ReplicaLoad]) -> int:
        """See `Router.choose`."""
        return self._turn.least([load.kv_tokens for load in loads])


class PrefixAffinity:
    """The one that was sent the longest beginning of the same prompt, unless it is far busier than others.

    Of several that were sent it the least busy one, and without any the least busy of all.

    Args:
        block_size: tokens per block of the prefix caches, which share nothing smaller.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._sent_to: OrderedDict[bytes, frozenset[int]] = OrderedDict()
        self._turn = _Turn()

    def choose(self, request: Request, loads: Sequence[ReplicaLoad]) -> int:
        """See `Router.choose`."""
        hashes = hash_blocks(request, request.num_tokens // self._block_size, self._block_size)
        in_flight = [load.in_flight for load in loads]
        choice = self._holder(hashes, in_flight)
        least = min(in_flight)
        if choice is None or in_flight[choice] > max(least + _MORE_REQUESTS, _TIMES_REQUESTS * least):
            choice = self._turn.least(in_flight)
        for content_hash in hashes:
            self._sent_to[content_hash] = self._sent_to.get(content_hash, frozenset()) | {choice}
            self._sent_to.move_to_end(content_hash)
        while len(self._sent_to) > _MOST_BLOCKS:
            self._sent_to.popitem(last=False)
        return choice

    def _holder(self, hashes: Sequence[bytes], in_flight: Sequence[int]) -> int | None:
        holders: frozenset[int] = frozenset()
        for content_hash in hashes:
            further = self._sent_to.get(content_hash)
            if further is None:
                break
            holders = further
        return min(holders, key=lambda replica: (in_flight[replica], replica), default=None)


class _Turn:
    """Chooses the smallest number; where several are equal, the one whose turn is the longest ago."""

    def __init__(self) -> None:
        self._last = -1

    def least(self, numbers: Sequence[int]) -> int:
        count, least = len(numbers), min(numbers)
        order = ((self._last + 1 + step) % count for step in range(count))
        self._last = next(replica for replica in order if numbers[replica] == least)
        return self._last


ROUTERS: dict[str, Callable[[int], Router]] = {
    "round_robin": lambda block_size: RoundRobin(),
    "least_in_flight": lambda block_size: LeastInFlight(),
    "least_kv": lambda block_size: LeastKV(),
    "prefix_affinity": PrefixAffinity,
}
"""Policies by name; each is made with the tokens per block of the replicas' caches."""


DEFAULT_ROUTER = "least_in_flight"


def require_router(name: str) -> None:
    """See that there is a policy of that name.

    Raises:
        UserError: there is none.
    """
    if name not in ROUTERS:
        raise UserError(f"router {name!r} does not exist: choose one of {', '.join(ROUTERS)}")
