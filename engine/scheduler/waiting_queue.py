"""The requests that wait for a seat, in the order of the scheduling policy.

A request's key is fixed when it is queued, so nothing is ever sorted again, however long the queue:

    key = class + place within the class + arrival / aging

Class and place make a position: whole numbers are classes, the place lies in [0, 1). Sizes have theirs on a logarithmic
scale, so that a wait weighs against how many times larger a request is, whatever the sizes of a workload.

`priority - waited / aging` falls for all waiting requests alike, so its order is that of `priority + arrival / aging`.
Nobody who arrives more than `aging` times the difference of two positions later goes ahead. So a policy promises that a
request waits no longer than those ahead take to be served, and no new ones get ahead after that time. Victims of a
preemption come back before all others under `fcfs`, as do swapped ones under every policy.
"""

import heapq
from dataclasses import dataclass
from math import log2

from engine.config import SchedulerConfig, SchedulingPolicy
from engine.request import Request, RequestStatus


@dataclass(frozen=True, slots=True)
class Order:
    """What a policy looks at.

    Attributes:
        by_priority: a request's class is its priority value; else all are of one class.
        by_size: its place within the class follows its remaining work, from none to the largest there can be.
    """

    by_priority: bool
    by_size: bool


ORDERS: dict[SchedulingPolicy, Order] = {
    "fcfs": Order(by_priority=False, by_size=False),
    "sjf": Order(by_priority=False, by_size=True),
    "priority": Order(by_priority=True, by_size=False),
    "tiered": Order(by_priority=True, by_size=True),
}


def aged_priority(request: Request, config: SchedulerConfig) -> float:
    """The priority value with all waiting taken into account, comparable at any time."""
    if not config.aging:
        return request.priority
    assert request.arrival_ns is not None
    return request.priority + request.arrival_ns / (config.aging * 1e9)


class WaitingQueue:
    """Order of admission.

    Removed requests stay in the heap until they come up or make up half of it, so removing costs next to nothing.

    Args:
        config: policy, aging, and who goes to the head of its class.
        max_model_len: the largest that remaining work can be, in tokens.
    """

    def __init__(self, config: SchedulerConfig, max_model_len: int) -> None:
        self._order = ORDERS[config.policy]
        self._preempted_lead = config.policy == "fcfs"
        self._short_first_tokens = config.short_first_tokens
        self._retried_first = config.retried_first
        # Where all have the same position the order is that of the queue, which a retried request joins anew.
        has_positions = (
            self._order.by_priority or self._order.by_size or config.short_first_tokens or config.retried_first
        )
        self._aging_ns = config.aging * 1e9 if has_positions else 0
        self._log_largest = log2(2 + max_model_len)
        self._heap: list[tuple[float, int, Request]] = []
        self._num_waiting = 0
        self._num_preempted = 0

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, request: Request, remaining_tokens: int) -> None:
        """Queue a request.

        Args:
            remaining_tokens: prompt tokens to compute and output tokens to expect, at most `max_model_len`.
        """
        if self._preempted_lead and request.num_preemptions:
            # As in vLLM: back at the head, so that the last of several victims comes first.
            self._num_preempted += 1
            heapq.heappush(self._heap, (float("-inf"), -self._num_preempted, request))
        else:
            heapq.heappush(self._heap, (self._key(request, remaining_tokens), request.sequence_number, request))
        self._num_waiting += 1

    def _key(self, request: Request, remaining_tokens: int) -> float:
        place = log2(1 + remaining_tokens) / self._log_largest if self._order.by_size else 0.5
        if self._goes_to_the_head(request):
            place = 0.0
        key = place + request.priority if self._order.by_priority else place
        if self._aging_ns:
            assert request.arrival_ns is not None
            key += request.arrival_ns / self._aging_ns
        return key

    def _goes_to_the_head(self, request: Request) -> bool:
        if self._retried_first and (request.attempt or request.num_preemptions):
            return True
        return request.num_prompt_tokens <= self._short_first_tokens

    def peek(self) -> Request | None:
        """Whose turn it is, or None."""
        if not self._num_waiting:
            return None
        while (head := self._heap[0][2]).status is RequestStatus.FINISHED:
            heapq.heappop(self._heap)
        return head

    def pop(self) -> None:
        """Take out the request that `peek` returned."""
        self._num_waiting -= 1
        heapq.heappop(self._heap)

    def discard(self, request: Request) -> None:
        """Take out a waiting request that has been marked as finished."""
        assert request.status is RequestStatus.FINISHED
        self._num_waiting -= 1
        if len(self._heap) > 2 * self._num_waiting:
            self._heap = [entry for entry in self._heap if entry[2].status is not RequestStatus.FINISHED]
            heapq.heapify(self._heap)
