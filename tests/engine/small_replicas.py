"""A model small enough for several processes of a test, and requests to it."""

from collections.abc import Iterator
from typing import Any

from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.model.arch import ModelArch
from engine.model.resolve import ModelSource
from engine.parallel.process_replicas import ProcessReplicas
from engine.request import Request, SamplingParams
from engine.scheduler.plan import TokenEvent
from engine.serving import ServingEngine
from engine.trace import IterationRecord

VOCABULARY = 211
LONGEST = 160
SOURCE = ModelSource(
    "random:small", ModelArch("small", "llama", 32, 2, 2, 2, 16, 64, VOCABULARY, LONGEST), "random", None, False, None,
    "bfloat16",
)  # fmt: skip


def config_of(scheduler: SchedulerConfig | None = None, cache: CacheConfig | None = None) -> EngineConfig:
    """On the CPU, in float32, with little memory."""
    return EngineConfig(
        ModelConfig(SOURCE.name, "float32"),
        cache or CacheConfig(num_gpu_blocks_override=60),
        scheduler or SchedulerConfig(),
        device="cpu",
        device_memory_bytes=1 << 30,
    )


def load_replicas(source: ModelSource = SOURCE, **options: Any) -> ProcessReplicas:
    """Two of them."""
    return ProcessReplicas.load(config_of(**options), source, size=2, router="round_robin")


def request(name: str, prompt_tokens: int = 5, max_tokens: int = 16, **sampling: Any) -> Request:
    """A request whose prompt follows from its length alone."""
    tokens = [(31 * (prompt_tokens % 4) + 7 * i) % VOCABULARY for i in range(prompt_tokens)]
    return Request(name, tokens, SamplingParams(max_tokens=max_tokens, ignore_eos=True, **sampling))


def requests() -> Iterator[Request]:
    """Short and long ones, greedy and sampled ones; some begin alike, for the prefix cache."""
    for number, length in enumerate((5, 33, 17, 1, 23, 37, 33, 5, 41, 12)):
        yield request(str(number), length, temperature=number % 2, seed=number)


def run_to_end(engine: ServingEngine) -> tuple[list[TokenEvent], list[IterationRecord]]:
    """Step until nothing is left to do."""
    events: list[TokenEvent] = []
    records = []
    while engine.has_work:
        new_events, record = engine.step()
        events += new_events
        if record is not None:
            records.append(record)
    return events, records


def tokens_of(events: list[TokenEvent]) -> dict[str, list[int]]:
    """Output by request."""
    tokens: dict[str, list[int]] = {}
    for event in events:
        tokens.setdefault(event.request_id, []).extend(event.token_ids)
    return tokens


def tokens_and_preemptions(engine: ServingEngine) -> tuple[dict[str, list[int]], int]:
    """Output by request once all have ended, and how many preemptions there were."""
    events, records = run_to_end(engine)
    return tokens_of(events), sum(record.preemptions_recompute + record.preemptions_swap for record in records)
