"""The engine's settings, validated, under vLLM's names.

Frozen: a changed setting is a new object (`dataclasses.replace`), handed to `Engine.reconfigure`.
"""

from dataclasses import dataclass, field
from typing import Literal

from engine.errors import UserError

SchedulingPolicy = Literal["fcfs", "priority"]
POLICIES: tuple[SchedulingPolicy, ...] = ("fcfs", "priority")


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


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Who runs in a step.

    Attributes:
        max_num_seqs: seats; the most requests that run at once.
        max_num_batched_tokens: token budget of one step, prefill and decode together.
        chunk_size: most tokens one request may compute in a step, 0 for no such limit
            (vLLM's `long_prefill_token_threshold`).
        policy: order of the waiting queue, `fcfs` or `priority` (lower value first).

    Raises:
        UserError: a value out of range, or a combination that cannot work.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    chunk_size: int = 0
    policy: SchedulingPolicy = "fcfs"

    def __post_init__(self) -> None:
        _require_int("max_num_seqs", self.max_num_seqs, 1)
        _require_int("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        _require_int("chunk_size", self.chunk_size, 0)
        _require(self.policy in POLICIES, "policy", self.policy, f"choose one of {', '.join(POLICIES)}")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """How much KV cache there is and how it is cut.

    Attributes:
        gpu_memory_utilization: share (0, 1] of the device's total memory that the engine may use.
        block_size: tokens per KV block.
        enable_prefix_caching: reuse the blocks of equal prompt prefixes.
        num_gpu_blocks_override: number of usable blocks, in place of sizing by memory.

    Raises:
        UserError: a value out of range.
    """

    gpu_memory_utilization: float = 0.9
    block_size: int = 16
    enable_prefix_caching: bool = True
    num_gpu_blocks_override: int | None = None

    def __post_init__(self) -> None:
        u = self.gpu_memory_utilization
        _require(
            isinstance(u, int | float) and 0 < u <= 1, "gpu_memory_utilization", u, "it is a share above 0, at most 1"
        )
        _require_int("block_size", self.block_size, 1)
        _require(
            isinstance(self.enable_prefix_caching, bool),
            "enable_prefix_caching",
            self.enable_prefix_caching,
            "it is true or false",
        )
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
    """

    model: str = "smollm2-135m"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_model_len: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
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
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    device: str = "auto"
    device_memory_bytes: int | None = None
