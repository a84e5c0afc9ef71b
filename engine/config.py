"""The engine's settings, validated, under vLLM's names.

Frozen: a changed setting is a new object (`dataclasses.replace`), handed to `Engine.reconfigure`.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

from engine.errors import UserError

SchedulingPolicy = Literal["fcfs", "sjf", "priority", "tiered"]
POLICIES: tuple[SchedulingPolicy, ...] = get_args(SchedulingPolicy)
BatchingMode = Literal["continuous", "static", "dynamic"]
BATCHING_MODES: tuple[BatchingMode, ...] = get_args(BatchingMode)
PreemptionMode = Literal["recompute", "swap", "auto"]
PREEMPTION_MODES: tuple[PreemptionMode, ...] = get_args(PreemptionMode)
PreemptionVictim = Literal["auto", "last", "fewest_tokens", "lowest_priority"]
PREEMPTION_VICTIMS: tuple[PreemptionVictim, ...] = get_args(PreemptionVictim)
KVCacheDtype = Literal["auto", "float16", "bfloat16", "fp8"]
KV_CACHE_DTYPES: tuple[KVCacheDtype, ...] = get_args(KVCacheDtype)
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1}
"""Bytes of a number, by the name of its type."""
MAX_CUDAGRAPH_CAPTURE_SIZE = 512


def _require(ok: bool, what: str, value: object, right: str) -> None:
    if not ok:
        raise UserError(f"{what}={value!r} is not possible: {right}")


def _require_int(what: str, value: object, low: int) -> None:
    _require(
        isinstance(value, int) and not isinstance(value, bool) and value >= low,
        what,
        value,
        f"it must be a whole number of at least {low}",
    )


def _require_bool(what: str, value: object) -> None:
    _require(isinstance(value, bool), what, value, "it is true or false")


def _require_one_of(what: str, value: object, choices: tuple[str, ...]) -> None:
    _require(value in choices, what, value, f"choose one of {', '.join(choices)}")


def _require_seconds(what: str, value: object) -> None:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
    _require(ok, what, value, "it is a number of seconds, 0 for off")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Who runs in a step, who waits, who is turned away, and who makes room.

    0 switches off whatever is a limit, and every time is in seconds.

    Attributes:
        max_num_seqs: seats; the most requests that run at once.
        max_num_batched_tokens: token budget of one step, prefill and decode together.
        chunk_size: most tokens one request may compute in a step, 0 for no such limit
            (vLLM's `long_prefill_token_threshold`).
        policy: order of the waiting queue. `fcfs`: of arrival. `sjf`: least remaining work first. `priority`: lower
            priority value first. `tiered`: by priority value, least remaining work first within one.
        aging: seconds of waiting that lift a request past one priority value, or under `sjf` past the whole range of
            sizes, on a logarithmic scale. Without it (0) requests starve wherever others may go ahead of them.
        short_first_tokens: prompts of up to so many tokens go to the head of their class.
        retried_first: so do requests that were preempted, or sent again after they had been turned away.
        batching: `continuous`: requests come and go at every step. `static`: a batch is formed of those that wait,
            and the next one when all of it has left. `dynamic`: likewise, but a batch may wait to grow. The latter
            two do not mix prefill and decode in a step.
        max_queue_delay: `dynamic`: longest that the first of a batch waits for the batch to reach its size.
        preferred_batch_size: `dynamic`: the size at which a batch need not wait, and the most it has; 0 for
            `max_num_seqs`.
        max_queue_len, max_queue_tokens: a request is turned away that finds so many requests waiting for their first
            admission, or finds some waiting and would make them more than so many prompt tokens.
        queue_timeout: a request not admitted after so long is turned away.
        max_predicted_wait: a request whose wait for admission is predicted to be longer is turned away.
        preemption_mode: what becomes of a victim's cache. `recompute`: it is dropped. `swap`: it goes to host memory
            (`CacheConfig.swap_space`) while that has room. `auto`: whichever is predicted to cost less time.
        preemption_victim: who makes room. `last`: the running request admitted last. `fewest_tokens`: the one with
            the fewest computed tokens. `lowest_priority`: the one with the largest priority value, the last to arrive
            of those; with `aging`, waiting counts as it does in the queue. `auto`: `lowest_priority` where the policy
            knows priorities, else `last`.

    Raises:
        UserError: a value out of range.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    chunk_size: int = 0
    policy: SchedulingPolicy = "fcfs"
    aging: float = 0.0
    short_first_tokens: int = 0
    retried_first: bool = False
    batching: BatchingMode = "continuous"
    max_queue_delay: float = 0.0
    preferred_batch_size: int = 0
    max_queue_len: int = 0
    max_queue_tokens: int = 0
    queue_timeout: float = 0.0
    max_predicted_wait: float = 0.0
    preemption_mode: PreemptionMode = "recompute"
    preemption_victim: PreemptionVictim = "auto"

    def __post_init__(self) -> None:
        _require_int("max_num_seqs", self.max_num_seqs, 1)
        _require_int("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        _require_int("chunk_size", self.chunk_size, 0)
        _require_one_of("policy", self.policy, POLICIES)
        _require_seconds("aging", self.aging)
        _require_int("short_first_tokens", self.short_first_tokens, 0)
        _require_bool("retried_first", self.retried_first)
        _require_one_of("batching", self.batching, BATCHING_MODES)
        _require_seconds("max_queue_delay", self.max_queue_delay)
        _require_int("preferred_batch_size", self.preferred_batch_size, 0)
        _require_int("max_queue_len", self.max_queue_len, 0)
        _require_int("max_queue_tokens", self.max_queue_tokens, 0)
        _require_seconds("queue_timeout", self.queue_timeout)
        _require_seconds("max_predicted_wait", self.max_predicted_wait)
        _require_one_of("preemption_mode", self.preemption_mode, PREEMPTION_MODES)
        _require_one_of("preemption_victim", self.preemption_victim, PREEMPTION_VICTIMS)


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """How much KV cache there is and how it is cut.

    Attributes:
        gpu_memory_utilization: share (0, 1] of the device's total memory that the engine may use.
        block_size: tokens per KV block.
        enable_prefix_caching: reuse the blocks of equal prompt prefixes.
        num_gpu_blocks_override: number of usable blocks, in place of sizing by memory.
        swap_space: bytes of host memory for the caches of preempted requests; taken only when `preemption_mode`
            swaps. Without it (0) every victim is recomputed.

    Raises:
        UserError: a value out of range.
    """

    gpu_memory_utilization: float = 0.9
    block_size: int = 16
    enable_prefix_caching: bool = True
    num_gpu_blocks_override: int | None = None
    swap_space: int = 4 << 30

    def __post_init__(self) -> None:
        u = self.gpu_memory_utilization
        _require(
            isinstance(u, int | float) and 0 < u <= 1, "gpu_memory_utilization", u, "it is a share above 0, at most 1"
        )
        _require_int("block_size", self.block_size, 1)
        _require_bool("enable_prefix_caching", self.enable_prefix_caching)
        _require_int("swap_space", self.swap_space, 0)
        if self.num_gpu_blocks_override is not None:
            _require_int("num_gpu_blocks_override", self.num_gpu_blocks_override, 1)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, in which precision.

    Attributes:
        model: `smollm2-135m`, a Hugging Face folder or id, a `.gguf` file, or `random:NAME`.
        dtype: `auto` (float32 on the CPU, else the checkpoint's 16-bit type), `float32`, `bfloat16`, `float16`.
        max_model_len: longest request, prompt and output together, in tokens; None for the model's own maximum.
        seed: seed of random weights.
        kv_cache_dtype: what keys and values are kept in: `auto` (as `dtype`), `float16`, `bfloat16`, or `fp8` (8 bits,
            4 of exponent and 3 of mantissa, without scales). Fewer bits hold more tokens, and change answers a little.
    """

    model: str = "smollm2-135m"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_model_len: int | None = None
    seed: int = 0
    kv_cache_dtype: KVCacheDtype = "auto"

    def __post_init__(self) -> None:
        _require_one_of("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        dtypes = ("auto", "float32", "bfloat16", "float16")
        _require(self.dtype in dtypes, "dtype", self.dtype, f"choose one of {', '.join(dtypes)}")
        if self.max_model_len is not None:
            _require_int("max_model_len", self.max_model_len, 2)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything an engine is built from.

    Attributes:
        device: `auto`, `cpu`, `cuda`, `cuda:N`, or `sim:CARD` (simulated step times, virtual clock).
        device_memory_bytes: what counts as the device's total memory. None: the card's own; on the CPU
            a size that fits the machine.
        tensor_parallel_size: devices that share the model; 1 for one. `device` is then `cuda` or `cpu`, and
            `device_memory_bytes` and the swap space are each one's.
        attention_backend: `auto` (`triton` on a CUDA device, `cpu` on a CPU, `reference` where those cannot be), or
            one of them. Simulated devices have none.
        enforce_eager: on a card, launch every kernel of every step, and one step at a time: neither CUDA graphs nor
            overlap. Elsewhere it is always so.
        max_cudagraph_capture_size: tokens of the largest step that is captured as a CUDA graph; 0 for no graphs.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    device: str = "auto"
    device_memory_bytes: int | None = None
    tensor_parallel_size: int = 1
    attention_backend: str = "auto"
    enforce_eager: bool = False
    max_cudagraph_capture_size: int = MAX_CUDAGRAPH_CAPTURE_SIZE

    def __post_init__(self) -> None:
        _require_int("tensor_parallel_size", self.tensor_parallel_size, 1)
        _require_one_of("attention_backend", self.attention_backend, ("auto", "reference", "cpu", "triton"))
        _require_bool("enforce_eager", self.enforce_eager)
        _require_int("max_cudagraph_capture_size", self.max_cudagraph_capture_size, 0)
