"""An executor without a device: a step-time model moves the virtual clock, the scheduler above runs unchanged."""

import math
from typing import Protocol

from engine.clock import VirtualClock
from engine.config import DTYPE_BYTES
from engine.executor.base import MemoryProfile, StepResult
from engine.kv_cache.sizing import GIB
from engine.model.arch import ModelArch
from engine.scheduler.plan import StepPlan


class StepTimeModel(Protocol):
    """From the composition of a step to its duration."""

    def seconds(self, plan: StepPlan) -> float:
        """Duration of a step with tokens, > 0, the blocks that it swaps left aside."""
        ...

    def swap_seconds(self, num_blocks: int, bytes_per_block: int) -> float:
        """Time that so many blocks take to host memory, or back."""
        ...

    def restart(self, seed: int) -> None:
        """Begin a run: whatever is drawn at random is drawn from this seed on."""
        ...


class FixedStepTime:
    """A step costs `base_s`, each of its tokens `per_token_s` more, and each block it swaps `per_swapped_block_s`.

    For tests with round numbers.
    """

    def __init__(self, base_s: float, per_token_s: float = 0.0, per_swapped_block_s: float = 0.0) -> None:
        self.base_s = base_s
        self.per_token_s = per_token_s
        self.per_swapped_block_s = per_swapped_block_s

    def seconds(self, plan: StepPlan) -> float:
        return self.base_s + self.per_token_s * plan.num_tokens

    def swap_seconds(self, num_blocks: int, bytes_per_block: int) -> float:
        return num_blocks * self.per_swapped_block_s

    def restart(self, seed: int) -> None:
        """Nothing is drawn."""


class SimulatedExecutor:
    """Implements `engine.executor.base.Executor` by moving a virtual clock. Every token it yields is 0.

    Args:
        arch: shape of the model; its sizes decide memory and KV blocks.
        step_time: how long steps take.
        device_name: for people; they are told that it is simulated.
        device_memory_bytes: the device's total memory.
        max_model_len: longest request in tokens.
        dtype: of weights and activations, such as `bfloat16`.
        kv_cache_dtype: of the KV cache; None for the same.
    """

    simulated = True
    # Output tokens are all 0, so no model's own end-of-sequence token can be told from them.
    eos_token_ids: tuple[int, ...] = ()

    def __init__(
        self,
        arch: ModelArch,
        step_time: StepTimeModel,
        *,
        device_name: str,
        device_memory_bytes: int,
        max_model_len: int,
        dtype: str = "bfloat16",
        kv_cache_dtype: str | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.arch = arch
        self.device_name = device_name
        self.max_model_len = max_model_len
        self.vocab_size = arch.vocab_size
        self.dtype, self.kv_cache_dtype = dtype, kv_cache_dtype or dtype
        self._step_time = step_time
        self._device_memory_bytes = device_memory_bytes
        self._bytes_per_element = DTYPE_BYTES[dtype]
        self._block_size = 0
        self._num_swap_blocks = 0

    def restart(self, seed: int) -> None:
        """Begin a run at time 0, so that it does not matter what ran before it. The engine must be idle."""
        self.clock = VirtualClock()
        self._step_time.restart(seed)

    @property
    def host_link_bytes_per_s(self) -> float | None:
        if not self._num_swap_blocks:
            return None
        bytes_per_block = self.kv_bytes_per_block(self._block_size)
        seconds = self._step_time.swap_seconds(1, bytes_per_block)
        return bytes_per_block / seconds if seconds else math.inf

    def execute(self, plan: StepPlan) -> StepResult:
        """Blocks are copied before the step's tokens are computed, on the same stream: the times add up."""
        num_blocks = len(plan.swap_out) + len(plan.swap_in)
        seconds = self._step_time.seconds(plan) if plan.scheduled else 0.0
        if num_blocks:
            seconds += self._step_time.swap_seconds(num_blocks, self.kv_bytes_per_block(self._block_size))
        duration_ns = round(seconds * 1e9)
        self.clock.advance(duration_ns)
        return StepResult([0 for share in plan.scheduled if share.samples], device_time_ns=duration_ns)

    def kv_bytes_per_block(self, block_size: int) -> int:
        return block_size * self.arch.kv_bytes_per_token(DTYPE_BYTES[self.kv_cache_dtype])

    def profile_memory(self, max_num_batched_tokens: int, max_num_seqs: int) -> MemoryProfile:
        """Counted, not measured: the widest live tensors of one layer, and the logits in fp32 with a copy."""
        arch = self.arch
        per_token = (3 * arch.hidden_size + 3 * arch.intermediate_size) * self._bytes_per_element
        logits = 2 * 4 * min(max_num_seqs, max_num_batched_tokens) * arch.vocab_size
        return MemoryProfile(
            total=self._device_memory_bytes,
            weights=arch.weight_bytes(self._bytes_per_element),
            other=min(GIB // 2, self._device_memory_bytes // 40),
            peak_activation=max(max_num_batched_tokens * per_token, logits),
        )

    def allocate_kv(self, num_blocks: int, block_size: int, num_swap_blocks: int = 0) -> None:
        """There are no tensors to allocate, on the device or on its host."""
        self._block_size = block_size
        self._num_swap_blocks = num_swap_blocks

    def shutdown(self) -> None:
        """There is no device to give back."""
