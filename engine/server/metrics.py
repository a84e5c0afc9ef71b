"""What the server counts, for Prometheus. Names follow vLLM's, with `tune_` for `vllm:`."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from engine.request import FinishReason, Request
from engine.trace import IterationRecord

_NS_PER_S = 1e9
_TTFT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
_E2E_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280)


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """The moment that a scrape sees.

    Attributes:
        running, waiting: requests; those that were preempted wait again.
        kv_usage: share of the KV blocks that are owned, 0 to 1.
    """

    running: int
    waiting: int
    kv_usage: float


class ServerMetrics:
    """Counters, gauges and histograms in a registry of their own.

    The engine's thread counts, the event loop renders; prometheus-client's values take care of that.
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tune_{name}", text, labels, registry=registry)

        self._running = Gauge("tune_num_requests_running", "Requests that hold a seat.", registry=registry)
        self._waiting = Gauge("tune_num_requests_waiting", "Requests that wait for a seat.", registry=registry)
        self._kv_usage = Gauge("tune_kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.", registry=registry)
        self._preemptions = counter("num_preemptions", "Requests that had to give their blocks away.", "kind")
        self._swapped = counter("swapped_blocks", "Blocks copied from (in) and to (out) host memory.", "direction")
        self._recomputed = counter("recomputed_tokens", "Tokens that had been computed before.")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of requests that have begun to answer.")
        self._cached_tokens = counter("prompt_tokens_cached", "Those of them that lay in the prefix cache.")
        self._generation_tokens = counter("generation_tokens", "Tokens produced.")
        self._finished = counter("request_success", "Requests that were taken and have ended.", "finished_reason")
        self._shed = counter("requests_shed", "Requests turned away on arrival, by the limit that did.", "limit")
        self._timed_out = counter("requests_queue_timeout", "Requests turned away after waiting too long.")
        self._failures = counter("engine_failures", "Steps that broke off, with all requests under way.")
        self._ttft = Histogram(
            "tune_time_to_first_token_seconds",
            "From the arrival of a request to its first token.",
            buckets=_TTFT_BUCKETS_S,
            registry=registry,
        )
        self._e2e = Histogram(
            "tune_e2e_request_latency_seconds",
            "From the arrival of a request to its last token; aborted ones are left out.",
            buckets=_E2E_BUCKETS_S,
            registry=registry,
        )
        # A label's series exists from its first use on, but a rate needs its zero.
        for kind in ("recompute", "swap"):
            self._preemptions.labels(kind)
        for direction in ("in", "out"):
            self._swapped.labels(direction)

    def step(self, record: IterationRecord) -> None:
        """A step was made."""
        self._preemptions.labels("recompute").inc(record.preemptions_recompute)
        self._preemptions.labels("swap").inc(record.preemptions_swap)
        self._swapped.labels("in").inc(record.swapped_in_blocks)
        self._swapped.labels("out").inc(record.swapped_out_blocks)
        self._recomputed.inc(record.recomputed_tokens)

    def first_token(self, request: Request, time_ns: int) -> None:
        """A request began to answer."""
        self._prompt_tokens.inc(request.num_prompt_tokens)
        self._cached_tokens.inc(request.num_cached_tokens)
        self._ttft.observe(_age_s(request, time_ns))

    def tokens(self, count: int) -> None:
        """A request yielded `count` tokens."""
        self._generation_tokens.inc(count)

    def finished(self, request: Request, reason: FinishReason, time_ns: int) -> None:
        """A request that the engine had taken is over."""
        if reason is FinishReason.QUEUE_TIMEOUT:
            self._timed_out.inc()
            return
        self._finished.labels(str(reason)).inc()
        if reason is not FinishReason.ABORT:
            self._e2e.observe(_age_s(request, time_ns))

    def shed(self, limit: str) -> None:
        """A request was turned away on arrival."""
        self._shed.labels(limit).inc()

    def engine_failed(self) -> None:
        """A step broke off."""
        self._failures.inc()

    def render(self, load: ServerLoad) -> bytes:
        """Everything in Prometheus' text format."""
        self._running.set(load.running)
        self._waiting.set(load.waiting)
        self._kv_usage.set(load.kv_usage)
        return generate_latest(self._registry)


def _age_s(request: Request, time_ns: int) -> float:
    assert request.arrival_ns is not None
    return (time_ns - request.arrival_ns) / _NS_PER_S
