"""The executor that runs a model for real, in torch, on a CPU or one CUDA device."""

from collections.abc import Sequence

import torch

from engine.attention.base import AttentionBackend, AttentionSpec
from engine.attention.kv_tensors import KVTensors
from engine.attention.registry import make_attention
from engine.clock import Clock, WallClock
from engine.errors import UserError
from engine.executor.base import MemoryProfile, StepResult
from engine.executor.device import (
    available_host_bytes,
    describe_device,
    memory_errors_translated,
    resolve_device,
    resolve_dtype,
)
from engine.executor.input_batch import build_input_batch
from engine.executor.memory import (
    CPU_PROFILE_LAYERS,
    PROFILE_BLOCK_SIZE,
    cuda_total_and_other,
    default_cpu_total,
    largest_step,
    peak_bytes_cpu,
    peak_bytes_cuda,
)
from engine.executor.sampler import Sampler
from engine.executor.swap_space import SwapSpace, require_host_memory, staging_bytes
from engine.model.decoder import Decoder
from engine.model.resolve import ModelSource
from engine.model.weights import load_weights
from engine.scheduler.plan import ScheduledRequest, StepPlan


class TorchExecutor:
    """See `engine.executor.base.Executor` for the contract. Usually made by `load`.

    Args:
        decoder: the model, its weights on `device`.
        device, dtype: of weights, activations and KV cache.
        max_model_len: longest request in tokens; the decoder has that many positions.
        device_memory_bytes: what counts as the device's total memory; None for the card's own, or on the CPU
            for a size that fits the machine.
        seed: of the sampling of requests without a seed of their own.
        attention_backend: a name in `ATTENTION_BACKENDS`.
        clock: stamps nothing here; the engine over this executor reads it.

    Attributes:
        arch: the model's shape.
        dtype: e.g. `float32`.
        vocab_size: tokens are `0 .. vocab_size - 1`.
        weights_bytes: memory that the weights take on the device.
        num_parameters: weights, a tied output layer counted once.

    Example:
        >>> executor = TorchExecutor.load(resolve_model("smollm2-135m"), dtype="auto", device="cpu")
        >>> engine = Engine(executor, SchedulerConfig(), CacheConfig())
    """

    simulated = False

    def __init__(
        self,
        decoder: Decoder,
        *,
        device: torch.device,
        dtype: torch.dtype,
        max_model_len: int,
        device_memory_bytes: int | None = None,
        seed: int = 0,
        attention_backend: str = "reference",
        clock: Clock | None = None,
    ) -> None:
        self.arch = arch = decoder.arch
        self.clock: Clock = clock or WallClock()
        self.device_name = describe_device(device)
        self.max_model_len = max_model_len
        self.eos_token_ids = arch.eos_token_ids
        self.dtype = str(dtype).removeprefix("torch.")
        self.vocab_size = arch.vocab_size
        self.weights_bytes = decoder.weights_bytes
        self.num_parameters = arch.num_parameters
        self._decoder = decoder
        self._device = device
        self._torch_dtype = dtype
        self._sampler = Sampler(seed)
        self._attention_name = attention_backend
        self._attention_spec = AttentionSpec(
            arch.num_heads, arch.num_kv_heads, arch.head_dim, arch.sliding_window, dtype, device
        )
        self._attention = make_attention(attention_backend, self._attention_spec)
        self._kv: KVTensors | None = None
        self._swap: SwapSpace | None = None
        self._profiles: dict[tuple[int, int], MemoryProfile] = {}
        if device_memory_bytes is None and device.type == "cpu":
            device_memory_bytes = default_cpu_total(self.weights_bytes, available_host_bytes() + self.weights_bytes)
        self._device_memory_bytes = device_memory_bytes

    @classmethod
    def load(
        cls,
        source: ModelSource,
        *,
        dtype: str = "auto",
        device: str = "cpu",
        device_memory_bytes: int | None = None,
        max_model_len: int | None = None,
        seed: int = 0,
        attention_backend: str = "reference",
        clock: Clock | None = None,
    ) -> "TorchExecutor":
        """Load a model onto a device.

        Args:
            source: what `resolve_model` found.
            dtype: `auto` (float32 on the CPU, else the checkpoint's 16-bit type), `float32`, `bfloat16`, `float16`.
            device: `cpu`, `cuda` or `cuda:N`.
            max_model_len: longest request in tokens; None for the model's own maximum.
            seed: of random weights and of sampling.
            device_memory_bytes, attention_backend, clock: see the class.

        Raises:
            UserError: a device that is not there, a type or backend that does not exist, a length that the model
                cannot have, weights that cannot be read.
            OutOfDeviceMemory: the weights do not fit.
        """
        where = resolve_device(device)
        number_type = resolve_dtype(dtype, where, source.checkpoint_dtype)
        arch = source.arch
        longest = arch.max_position_embeddings if max_model_len is None else max_model_len
        if not 2 <= longest <= arch.max_position_embeddings:
            raise UserError(
                f"max_model_len={longest} is not possible: {source.name} takes from 2 to "
                f"{arch.max_position_embeddings} tokens"
            )
        with memory_errors_translated(where, f"loading the weights of {source.name}"), torch.inference_mode():
            weights = load_weights(source, dtype=number_type, device=where, seed=seed)
            decoder = Decoder(arch, weights, num_positions=longest, dtype=number_type, device=where)
        return cls(
            decoder,
            device=where,
            dtype=number_type,
            max_model_len=longest,
            device_memory_bytes=device_memory_bytes,
            seed=seed,
            attention_backend=attention_backend,
            clock=clock,
        )

    @property
    def host_link_bytes_per_s(self) -> float | None:
        """See `Executor.host_link_bytes_per_s`. Measured when the swap space is allocated."""
        return None if self._swap is None else self._swap.bytes_per_s

    def execute(self, plan: StepPlan) -> StepResult:
        """See `Executor.execute`; needs `allocate_kv` first."""
        num_copies = len(plan.swap_out) + len(plan.swap_in)
        if not plan.scheduled and not num_copies:
            return StepResult([])
        if self._kv is None or (num_copies and self._swap is None):
            raise RuntimeError("execute needs a KV cache, and swap space to swap: call allocate_kv first")
        doing = f"running a step of {plan.num_tokens} tokens for {len(plan.scheduled)} requests"
        doing += f" and {num_copies} swapped blocks" if num_copies else ""
        with memory_errors_translated(self._device, doing), torch.inference_mode():
            if self._device.type != "cuda":
                return StepResult(self._step(plan, self._kv))
            with torch.cuda.device(self._device):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                token_ids = self._step(plan, self._kv)
                end.record()
                end.synchronize()
                return StepResult(token_ids, device_time_ns=int(begin.elapsed_time(end) * 1e6))

    def kv_bytes_per_block(self, block_size: int) -> int:
        """See `Executor.kv_bytes_per_block`."""
        return block_size * self.arch.kv_bytes_per_token(self._torch_dtype.itemsize)

    def profile_memory(self, max_num_batched_tokens: int, max_num_seqs: int) -> MemoryProfile:
        """See `Executor.profile_memory`. On the CPU two layers stand for all, see `engine.executor.memory`.

        Raises:
            OutOfDeviceMemory: a step of that size does not fit.
        """
        size = (max_num_batched_tokens, max_num_seqs)
        if size not in self._profiles:
            if self._device.type == "cuda":
                # A large step may need the memory that the cache of the settings before it still holds.
                self._kv = None
                torch.cuda.empty_cache()
            doing = f"measuring a step of {max_num_batched_tokens} tokens for {max_num_seqs} requests"
            with memory_errors_translated(self._device, doing), torch.inference_mode():
                self._profiles[size] = self._measure(largest_step(*size, self.max_model_len))
        return self._profiles[size]

    def allocate_kv(self, num_blocks: int, block_size: int, num_swap_blocks: int = 0) -> None:
        """See `Executor.allocate_kv`.

        Raises:
            OutOfDeviceMemory: there is not so much.
        """
        on_cpu = self._device.type == "cpu"
        keeps_kv = _size(self._kv) == (num_blocks, block_size)
        keeps_swap = _size(self._swap) == ((num_swap_blocks, block_size) if num_swap_blocks else None)
        if keeps_kv and keeps_swap:
            return
        # On the CPU both lie in the same memory, and what was never written takes none of it yet: whether both fit
        # can be told only when neither is there.
        if on_cpu or not keeps_kv:
            self._kv = None
        if on_cpu or not keeps_swap:
            self._swap = None
        if not on_cpu:
            torch.cuda.empty_cache()
        if num_swap_blocks and self._swap is None:
            block_bytes = self.kv_bytes_per_block(block_size)
            kv_bytes = num_blocks * block_bytes if on_cpu else 0
            require_host_memory(num_swap_blocks * block_bytes, kv_bytes, available_host_bytes())
        if self._kv is None:
            with memory_errors_translated(self._device, f"allocating {num_blocks} KV blocks of {block_size} tokens"):
                self._kv = self._make_kv(self.arch.num_layers, num_blocks, block_size)
        if num_swap_blocks and self._swap is None:
            with memory_errors_translated(self._device, f"allocating {num_swap_blocks} blocks of swap space"):
                self._swap = SwapSpace(num_swap_blocks, self._kv)

    def shutdown(self) -> None:
        """Drop weights, KV cache and swap space; the executor is of no more use."""
        del self._decoder
        self._kv = self._swap = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _make_kv(self, num_layers: int, num_blocks: int, block_size: int) -> KVTensors:
        page_shape = self._attention.page_shape(block_size)
        return KVTensors(num_layers, num_blocks, block_size, page_shape, self._torch_dtype, self._device)

    def _step(self, plan: StepPlan, kv: KVTensors) -> list[int]:
        if self._swap is not None:
            self._swap.copy_out(kv, plan.swap_out)
            self._swap.copy_in(kv, plan.swap_in)
        return self._run(plan.scheduled, self._attention, kv) if plan.scheduled else []

    def _run(
        self,
        scheduled: Sequence[ScheduledRequest],
        attention: AttentionBackend,
        kv: KVTensors,
        num_layers: int | None = None,
    ) -> list[int]:
        batch = build_input_batch(scheduled, kv.block_size, self._device)
        step = attention.begin_step(batch.attention, kv)
        logits = self._decoder.forward(batch.token_ids, batch.positions, step, batch.sample_rows, num_layers)
        return self._sampler.sample(logits, batch.sampled)

    def _measure(self, scheduled: Sequence[ScheduledRequest]) -> MemoryProfile:
        # A backend of its own, so that the workspace that the backend in use may have grown already counts too.
        attention = make_attention(self._attention_name, self._attention_spec)
        on_cpu = self._device.type == "cpu"
        num_layers = min(CPU_PROFILE_LAYERS, self.arch.num_layers) if on_cpu else self.arch.num_layers
        kv = self._make_kv(num_layers, 1, PROFILE_BLOCK_SIZE)

        def step() -> None:
            self._run(scheduled, attention, kv, num_layers)

        if on_cpu:
            assert self._device_memory_bytes is not None
            total, other, peak = self._device_memory_bytes, 0, peak_bytes_cpu(step)
        else:
            total, other = cuda_total_and_other(self._device)
            # Blocks are swapped before the step's tokens, which take over the memory that their staging held.
            peak = max(peak_bytes_cuda(step, self._device), staging_bytes(self._device))
        return MemoryProfile(
            total=self._device_memory_bytes or total, weights=self.weights_bytes, other=other, peak_activation=peak
        )


def _size(memory: KVTensors | SwapSpace | None) -> tuple[int, int] | None:
    return None if memory is None else (memory.num_blocks, memory.block_size)
