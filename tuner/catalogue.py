"""Every setting in one place: what its values are, what it means, what vLLM calls it. For help texts and parsing."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.config import BATCHING_MODES, POLICIES, PREEMPTION_MODES, PREEMPTION_VICTIMS
from tuner.kinds import Count, Duration, Kind, OneOf, Share, Size, Switch


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting.

    Attributes:
        kind: of its values.
        meaning: in one line.
        vllm: vLLM's name for it; None where it has none.
    """

    kind: Kind
    meaning: str
    vllm: str | None = None


CATALOGUE: Mapping[str, Entry] = {
    "gpu_memory_utilization": Entry(
        Share(), "share of the device's memory that the engine may use", "gpu_memory_utilization"
    ),
    "max_num_seqs": Entry(Count(), "seats: the most requests that run at once", "max_num_seqs"),
    "max_num_batched_tokens": Entry(
        Count(), "token budget of one step, prefill and decode together", "max_num_batched_tokens"
    ),
    "chunk_size": Entry(
        Count(can_be_off=True),
        "most tokens that one request may compute in a step",
        "long_prefill_token_threshold",
    ),
    "block_size": Entry(Count(), "tokens per block of the KV cache", "block_size"),
    "enable_prefix_caching": Entry(Switch(), "reuse the blocks of equal prompt prefixes", "enable_prefix_caching"),
    "policy": Entry(
        OneOf(POLICIES),
        "who waits ahead of whom: by arrival, least work, priority, or least work within a priority",
        "scheduling_policy (fcfs, priority)",
    ),
    "short_first_tokens": Entry(
        Count(can_be_off=True), "shorter prompts, and those of that length, go to the head of their class"
    ),
    "retried_first": Entry(Switch(), "so do requests that were preempted, or turned away and sent again"),
    "aging": Entry(Duration(), "waiting that lifts a request past one priority value, or under sjf past all sizes"),
    "batching": Entry(OneOf(BATCHING_MODES), "requests join at every step, or in batches that may wait to grow"),
    "max_queue_delay": Entry(Duration(), "dynamic batching: longest that a batch waits to grow"),
    "preferred_batch_size": Entry(
        Count(can_be_off=True),
        "dynamic batching: the size at which a batch need not wait, and the most it has; off: all seats",
    ),
    "max_queue_len": Entry(Count(can_be_off=True), "turn requests away while so many wait"),
    "max_queue_tokens": Entry(Count(can_be_off=True), "turn requests away that would make waiting prompts longer"),
    "queue_timeout": Entry(Duration(), "turn requests away that were not admitted after so long"),
    "max_predicted_wait": Entry(Duration(), "turn requests away that would wait longer, by prediction"),
    "preemption_mode": Entry(
        OneOf(PREEMPTION_MODES), "a victim's cache is dropped, goes to host memory, or what costs less time"
    ),
    "swap_space": Entry(Size(), "host memory for the caches of victims, taken only when they are swapped"),
    "preemption_victim": Entry(
        OneOf(PREEMPTION_VICTIMS), "who makes room; auto: lowest_priority where the policy knows priorities, else last"
    ),
}
"""In the order of `Settings`."""
