"""An executor without a device: a step-time model moves the virtual clock, the scheduler above runs unchanged."""

from typing import Protocol

from engine.clock import VirtualClock
from engine.executor.base import MemoryProfile, StepResult
from engine.kv_cache.sizing import GIB
from engine.model.arch import ModelArch
from engine.scheduler.plan import StepPlan


class StepTimeModel(Protocol):
    """From the composition of a step to its duration."""

    def seconds(self, plan: StepPlan) -> float:
        """Duration of a step, > 0."""
        ...


class FixedStepTime:
    """A step costs `base_s`, and each of its tokens `per_token_s` more. For tests with round numbers."""

    def __init__(self, base_s: float, per_token_s: float = 0.0) -> None:
        self.base_s = base_s
        self.per_token_s = per_token_s

    def seconds(self, plan: StepPlan) -> float:
        return self.base_s + self.per_token_s * plan.num_tokens


class SimulatedExecutor:
    """Implements `engine.executor.base.Executor` by moving a virtual clock. Every token it yields is 0.

    Args:
        arch: shape of the model; its sizes decide memory and KV blocks.
        step_time: how long steps take.
        device_name: for people; they are told that it is simulated.
        device_memory_bytes: the device's total memory.
        max_model_len: longest request in tokens.
        bytes_per_element: of weights, activations and KV.
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
        bytes_per_element: int = 2,
    ) -> None:
        self.clock = VirtualClock()
        self.arch = arch
        self.device_name = device_name
        self.max_model_len = max_model_len
        self.vocab_size = arch.vocab_size
        self._step_time = step_time
        self._device_memory_bytes = device_memory_bytes
        self._bytes_per_element = bytes_per_element

    def execute(self, plan: StepPlan) -> StepResult:
        duration_ns = round(self._step_time.seconds(plan) * 1e9)
        self.clock.advance(duration_ns)
        return StepResult([0] * sum(s.samples for s in plan.scheduled), device_time_ns=duration_ns)

    def kv_bytes_per_block(self, block_size: int) -> int:
        return block_size * self.arch.kv_bytes_per_token(self._bytes_per_element)

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

    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        """There are no tensors to allocate."""

    def shutdown(self) -> None:
        """There is no device to give back."""
