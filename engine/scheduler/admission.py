"""Who is let in to wait, and for how long: a queue without limits turns a burst into a delay for everybody after it."""

from collections import OrderedDict

from engine.config import SchedulerConfig
from engine.errors import RequestRefused, RequestShed, UserError
from engine.request import Request, RequestStatus
from engine.scheduler.waiting_queue import ORDERS

# How fast the memory of past admissions fades.
HALF_LIFE_S = 10.0


def require_new(request: Request) -> None:
    """Refuse a request that was in an engine before.

    Raises:
        UserError: it was.
    """
    if request.status is not RequestStatus.WAITING or request.history:
        raise UserError(f"request_id={request.request_id!r} has been queued before: make a new Request")


def require_known_tokens(request: Request, vocab_size: int) -> None:
    """Refuse tokens that the model does not know.

    Raises:
        RequestRefused: one lies outside of `0 .. vocab_size - 1`.
    """
    if min(request.prompt_token_ids) < 0 or max(request.prompt_token_ids) >= vocab_size:
        raise RequestRefused(f"the prompt holds token ids outside the vocabulary, 0 to {vocab_size - 1}")


def require_fit(request: Request, max_model_len: int, pool_tokens: int) -> None:
    """Refuse what can never run: vLLM lets such a request preempt itself and never run again.

    Args:
        max_model_len: longest request in tokens.
        pool_tokens: what the KV cache holds.

    Raises:
        RequestRefused: with the numbers.
    """
    asked = request.num_prompt_tokens + request.sampling.max_tokens
    ask = f"{request.num_prompt_tokens} prompt tokens and max_tokens={request.sampling.max_tokens}"
    if asked > max_model_len:
        raise RequestRefused(f"{ask} exceed max_model_len={max_model_len}")
    # The last output token is handed out, never computed, so it needs no room.
    if asked - 1 > pool_tokens:
        raise RequestRefused(f"{ask} can never fit into a KV cache of {pool_tokens} tokens")


class ServiceRate:
    """Prompt tokens admitted per second while requests were left waiting, recent seconds counting most.

    Only then is the rate that of the engine and not that of the arrivals.
    """

    def __init__(self) -> None:
        self._faded_tokens = 0.0
        self._faded_seconds = 0.0
        self._seconds = 0.0
        self._last_ns: int | None = None

    def observe(self, now_ns: int, admitted_tokens: int, *, was_backlogged: bool) -> None:
        """Take in a step.

        Args:
            admitted_tokens: prompt tokens of the requests admitted for the first time in this step.
            was_backlogged: the step before had left requests waiting, and some of them still did.
        """
        if was_backlogged and self._last_ns is not None:
            seconds = (now_ns - self._last_ns) / 1e9
            fade = 0.5 ** (seconds / HALF_LIFE_S)
            self._faded_tokens = self._faded_tokens * fade + admitted_tokens
            self._faded_seconds = self._faded_seconds * fade + seconds
            self._seconds += seconds
        self._last_ns = now_ns

    def wait_s(self, tokens_ahead: int) -> float:
        """How long a request with so many prompt tokens before it will wait, in seconds."""
        if not tokens_ahead:
            return 0.0
        if self._faded_tokens:
            return tokens_ahead * self._faded_seconds / self._faded_tokens
        # Nobody was ever admitted from the queue: it will last at least as long as it has lasted.
        return self._seconds


class Admission:
    """Counts the requests that wait for their first admission, and turns away those that would be too many.

    Those that the next step can seat are let in without counting. A request that was preempted waits too, but it is
    in: it counts for no limit.

    Args:
        config: the limits.
        room: requests and prompt tokens that the first step can take.
    """

    def __init__(self, config: SchedulerConfig, room: tuple[int, int]) -> None:
        self._config = config
        self._by_priority = ORDERS[config.policy].by_priority
        self._timeout_ns = round(config.queue_timeout * 1e9)
        # By time of queueing. A plain dict would be slow to find its first entry after many that are gone.
        self._newcomers: OrderedDict[str, Request] = OrderedDict()
        # Those of them that the next step can seat.
        self._expected: dict[str, Request] = {}
        self._num_counted = 0
        self._counted_tokens: dict[int, int] = {}
        self._seats_left, self._tokens_left = room
        self._admitted_tokens = 0
        self._rate = ServiceRate()

    @property
    def num_newcomers(self) -> int:
        """Requests that wait for their first admission."""
        return len(self._newcomers)

    def check(self, request: Request) -> None:
        """Let a request in, or not.

        Raises:
            RequestShed: with the limit that turns it away.
        """
        if self._seats_left > 0 and self._tokens_left > 0:
            return
        config, waiting = self._config, self._num_counted
        if config.max_queue_len and waiting >= config.max_queue_len:
            text = f"{waiting} requests wait already, max_queue_len={config.max_queue_len}"
            self._shed(request, "max_queue_len", text)
        if config.max_queue_tokens and waiting:
            tokens = sum(self._counted_tokens.values())
            if tokens + request.num_prompt_tokens > config.max_queue_tokens:
                text = f"{tokens} prompt tokens wait already, max_queue_tokens={config.max_queue_tokens}"
                self._shed(request, "max_queue_tokens", text)
        if config.max_predicted_wait and waiting:
            predicted_s = self.predicted_wait_s(request)
            if predicted_s > config.max_predicted_wait:
                text = f"it would wait for {predicted_s:.1f} s, max_predicted_wait={config.max_predicted_wait:g}"
                self._shed(request, "max_predicted_wait", text)

    def _shed(self, request: Request, limit: str, why: str) -> None:
        excess_s = self.predicted_wait_s(request)
        if limit == "max_predicted_wait":
            excess_s -= self._config.max_predicted_wait
        raise RequestShed(f"{request.request_id} was turned away: {why}", limit, max(1.0, excess_s))

    def predicted_wait_s(self, request: Request) -> float:
        """How long a request that comes now would wait for its admission, in seconds.

        By the tokens queued before it, in its class and those ahead of it; the order within a class is left aside.
        """
        ahead = sum(
            tokens
            for priority, tokens in self._counted_tokens.items()
            if not self._by_priority or priority <= request.priority
        )
        return self._rate.wait_s(ahead)

    def queued(self, request: Request) -> None:
        """A request was let in and waits."""
        self._newcomers[request.request_id] = request
        if self._seats_left > 0 and self._tokens_left > 0:
            self._expected[request.request_id] = request
            self._seats_left -= 1
            self._tokens_left -= request.num_prompt_tokens
        else:
            self._count(request, 1)

    def _count(self, request: Request, change: int) -> None:
        self._num_counted += change
        tokens = self._counted_tokens.get(request.priority, 0) + change * request.num_prompt_tokens
        self._counted_tokens[request.priority] = tokens
        if not tokens:
            del self._counted_tokens[request.priority]

    def admitted(self, request: Request) -> None:
        """A request runs for the first time."""
        self._admitted_tokens += request.num_prompt_tokens
        self.left(request)

    def left(self, request: Request) -> None:
        """A request no longer waits for its first admission."""
        del self._newcomers[request.request_id]
        if self._expected.pop(request.request_id, None) is None:
            self._count(request, -1)

    def step_planned(self, now_ns: int, *, was_backlogged: bool) -> None:
        """A step has admitted all it could: whoever is left counts from now on. See `ServiceRate.observe`."""
        self._rate.observe(now_ns, self._admitted_tokens, was_backlogged=was_backlogged)
        self._admitted_tokens = 0
        for request in self._expected.values():
            self._count(request, 1)
        self._expected.clear()

    def step_done(self, room: tuple[int, int]) -> None:
        """What the next step can take: requests, and prompt tokens."""
        self._seats_left, self._tokens_left = room

    @property
    def oldest_ns(self) -> int | None:
        """When the request that has waited longest for its first admission was queued."""
        return next(iter(self._newcomers.values())).history[0].time_ns if self._newcomers else None

    @property
    def next_timeout_ns(self) -> int | None:
        """When that request will have waited too long."""
        oldest_ns = self.oldest_ns
        return None if oldest_ns is None or not self._timeout_ns else oldest_ns + self._timeout_ns

    def next_expired(self, now_ns: int) -> Request | None:
        """A request that has waited too long, or None."""
        expires_ns = self.next_timeout_ns
        if expires_ns is None or expires_ns > now_ns:
            return None
        return next(iter(self._newcomers.values()))
