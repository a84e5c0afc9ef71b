"""The executor that runs a model for real, in torch, on a CPU or one CUDA device."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from engine.attention.base import AttentionBackend, AttentionSpec, GraphAttentionBackend
from engine.attention.kv_tensors import KVTensors
from engine.attention.registry import choose_attention, make_attention
from engine.clock import Clock, WallClock
from engine.config import MAX_CUDAGRAPH_CAPTURE_SIZE
from engine.executor.base import MemoryProfile, StepHandle, StepResult
from engine.executor.cuda_graphs import CudaRecorder, StepGraphs, graph_bytes
from engine.executor.cuda_steps import CudaStep, DoneStep, nvtx_range
from engine.executor.device import (
    available_host_bytes,
    describe_device,
    dtype_name,
    memory_errors_translated,
    on_device,
    resolve_device,
    resolve_dtype,
    resolve_kv_dtype,
)
from engine.executor.input_batch import InputBatch
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
from engine.executor.step_runner import StepRunner
from engine.executor.swap_space import SwapSpace, require_host_memory, staging_bytes
from engine.host_phases import HostPhases
from engine.model.decoder import Decoder
from engine.model.resolve import ModelSource
from engine.model.weights import load_weights
from engine.parallel.sharding import WHOLE
from engine.scheduler.plan import ScheduledRequest, StepPlan

if TYPE_CHECKING:
    from engine.parallel.collectives import RankGroup


class TorchExecutor:
    """See `engine.executor.base.Executor` for the contract. Usually made by `load`.

    Args:
        decoder: the model, its weights on `device`.
        device, dtype: of weights and activations.
        kv_dtype: of the KV cache; None for `dtype`.
        max_model_len: longest request in tokens; the decoder has that many positions.
        device_memory_bytes: what counts as the device's total memory; None for the card's own, or on the CPU
            for a size that fits the machine.
        seed: of the sampling of requests without a seed of their own.
        attention_backend: a name in `ATTENTION_BACKENDS`, or `auto`.
        enforce_eager: launch every kernel of every step, and one step at a time.
        max_cudagraph_capture_size: tokens of the largest step that is captured as a CUDA graph; 0 for no graphs.
        clock: stamps nothing here; the engine over this executor reads it.
        num_ranks: executors that share the host's memory, each with a part of the model; `arch` is the part's shape.

    Attributes:
        arch: the model's shape.
        dtype, kv_cache_dtype: as in `ModelConfig`, but never `auto`.
        vocab_size: tokens are `0 .. vocab_size - 1`.
        weights_bytes: memory that the weights take on the device.
        num_parameters: weights, a tied output layer counted once.
        attention_backend: the name of the one in use.
        max_cudagraph_capture_size: as given; 0 also where graphs cannot be.
        phases: what the host is doing in a step.

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
        kv_dtype: torch.dtype | None = None,
        max_model_len: int,
        device_memory_bytes: int | None = None,
        seed: int = 0,
        attention_backend: str = "auto",
        enforce_eager: bool = False,
        max_cudagraph_capture_size: int = MAX_CUDAGRAPH_CAPTURE_SIZE,
        clock: Clock | None = None,
        num_ranks: int = 1,
    ) -> None:
        self.arch = arch = decoder.arch
        self.clock: Clock = clock or WallClock()
        self.device_name = describe_device(device)
        self.max_model_len = max_model_len
        self.eos_token_ids = arch.eos_token_ids
        self.dtype, self.kv_cache_dtype = dtype_name(dtype), dtype_name(kv_dtype or dtype)
        self.vocab_size = arch.vocab_size
        self.weights_bytes = decoder.weights_bytes
        self.num_parameters = arch.num_parameters
        self._decoder = decoder
        self._num_ranks = num_ranks
        self._device = device
        self.phases = HostPhases()
        self._runner = StepRunner(decoder, Sampler(seed), device, self.phases)
        self._last_end: torch.cuda.Event | None = None
        # Ranks wait for one another within a step, and are told of each step when it begins.
        self.overlaps = device.type == "cuda" and not enforce_eager and num_ranks == 1
        self.attention_backend = choose_attention(attention_backend, device, dtype, kv_dtype)
        self._attention_spec = AttentionSpec(
            arch.num_heads, arch.num_kv_heads, arch.head_dim, arch.sliding_window, dtype, device, kv_dtype
        )
        self._attention = make_attention(self.attention_backend, self._attention_spec)
        can_capture = self.overlaps and isinstance(self._attention, GraphAttentionBackend)
        self.max_cudagraph_capture_size = max_cudagraph_capture_size if can_capture else 0
        self._graphs: StepGraphs | None = None
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
        kv_cache_dtype: str = "auto",
        device: str = "cpu",
        device_memory_bytes: int | None = None,
        max_model_len: int | None = None,
        seed: int = 0,
        attention_backend: str = "auto",
        enforce_eager: bool = False,
        max_cudagraph_capture_size: int = MAX_CUDAGRAPH_CAPTURE_SIZE,
        clock: Clock | None = None,
        ranks: "RankGroup | None" = None,
    ) -> "TorchExecutor":
        """Load a model onto a device.

        Args:
            source: what `resolve_model` found.
            dtype, kv_cache_dtype: as in `ModelConfig`.
            device: `cpu`, `cuda` or `cuda:N`.
            max_model_len: longest request in tokens; None for the model's own maximum.
            seed: of random weights and of sampling.
            ranks: those that share the model with this one, which holds its part; None for all of it.
            device_memory_bytes, attention_backend, enforce_eager, max_cudagraph_capture_size, clock: see the class.

        Raises:
            UserError: a device that is not there, a type or backend that does not exist, a length that the model
                cannot have, weights that cannot be read.
            OutOfDeviceMemory: the weights do not fit.
        """
        where = resolve_device(device)
        number_type = resolve_dtype(dtype, where, source.checkpoint_dtype)
        kv_dtype = resolve_kv_dtype(kv_cache_dtype, number_type)
        attention_backend = choose_attention(attention_backend, where, number_type, kv_dtype)
        arch = source.arch
        longest = source.longest_request(max_model_len)
        with memory_errors_translated(where, f"loading the weights of {source.name}"), torch.inference_mode():
            shard = WHOLE if ranks is None else ranks.shard
            cut = partial(shard.cut, arch)
            weights = load_weights(source, dtype=number_type, device=where, seed=seed, cut=cut)
            decoder = Decoder(
                shard.arch(arch), weights, num_positions=longest, dtype=number_type, device=where, ranks=ranks
            )
        return cls(
            decoder,
            device=where,
            dtype=number_type,
            kv_dtype=kv_dtype,
            max_model_len=longest,
            device_memory_bytes=device_memory_bytes,
            seed=seed,
            attention_backend=attention_backend,
            enforce_eager=enforce_eager,
            max_cudagraph_capture_size=max_cudagraph_capture_size,
            clock=clock,
            num_ranks=shard.size,
        )

    @property
    def host_link_bytes_per_s(self) -> float | None:
        """See `Executor.host_link_bytes_per_s`. Measured when the swap space is allocated."""
        return None if self._swap is None else self._swap.bytes_per_s

    def execute(self, plan: StepPlan) -> StepResult:
        """See `Executor.execute`; needs `allocate_kv` first."""
        return self.launch(plan).wait() if plan.has_work else StepResult([])

    def launch(self, plan: StepPlan) -> StepHandle:
        """See `OverlappingExecutor.launch`; on the CPU the step is over when this returns."""
        num_copies = len(plan.swap_out) + len(plan.swap_in)
        if self._kv is None or (num_copies and self._swap is None):
            raise RuntimeError("execute needs a KV cache, and swap space to swap: call allocate_kv first")
        doing = f"running a step of {plan.num_tokens} tokens for {len(plan.scheduled)} requests"
        doing += f" and {num_copies} swapped blocks" if num_copies else ""
        with memory_errors_translated(self._device, doing), torch.inference_mode():
            batch = self._runner.lay_out(plan.scheduled, self._kv.block_size) if plan.scheduled else None
            if self._device.type != "cuda":
                tokens = self._step(plan, batch, self._kv)
                return DoneStep(StepResult([] if tokens is None else tokens.tolist()))
            with on_device(self._device), nvtx_range(plan):
                step = CudaStep(self._device, self._last_end, doing, self.phases)
                step.complete(self._step(plan, batch, self._kv))
                self._last_end = step.end
                return step

    def kv_bytes_per_block(self, block_size: int) -> int:
        """See `Executor.kv_bytes_per_block`."""
        return block_size * self.arch.kv_bytes_per_token(self._attention_spec.page_dtype.itemsize)

    def profile_memory(self, max_num_batched_tokens: int, max_num_seqs: int) -> MemoryProfile:
        """See `Executor.profile_memory`. On the CPU two layers stand for all, see `engine.executor.memory`.

        Raises:
            OutOfDeviceMemory: a step of that size does not fit.
        """
        size = (max_num_batched_tokens, max_num_seqs)
        if size not in self._profiles:
            if self._device.type == "cuda":
                # A large step may need the memory that the cache of the settings before it still holds.
                self._kv = self._graphs = None
                torch.cuda.empty_cache()
            doing = f"measuring a step of {max_num_batched_tokens} tokens for {max_num_seqs} requests"
            with memory_errors_translated(self._device, doing), on_device(self._device), torch.inference_mode():
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
            self._kv = self._graphs = None
        if on_cpu or not keeps_swap:
            self._swap = None
        if not on_cpu:
            torch.cuda.empty_cache()
        if num_swap_blocks and self._swap is None:
            block_bytes = self.kv_bytes_per_block(block_size)
            kv_bytes = num_blocks * block_bytes if on_cpu else 0
            require_host_memory(num_swap_blocks * block_bytes, kv_bytes, available_host_bytes() // self._num_ranks)
        if self._kv is None:
            with memory_errors_translated(self._device, f"allocating {num_blocks} KV blocks of {block_size} tokens"):
                self._kv = self._make_kv(self.arch.num_layers, num_blocks, block_size)
                self._graphs = self._make_graphs(self._attention, self._kv)
                if self._graphs is not None:
                    self._graphs.capture_all()
        if num_swap_blocks and self._swap is None:
            with memory_errors_translated(self._device, f"allocating {num_swap_blocks} blocks of swap space"):
                self._swap = SwapSpace(num_swap_blocks, self._kv)

    def shutdown(self) -> None:
        """Drop weights, KV cache and swap space; the executor is of no more use."""
        del self._decoder, self._runner
        self._kv = self._swap = self._graphs = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _make_kv(self, num_layers: int, num_blocks: int, block_size: int) -> KVTensors:
        page_shape = self._attention.page_shape(block_size)
        return KVTensors(num_layers, num_blocks, block_size, page_shape, self._attention_spec.page_dtype, self._device)

    def _make_graphs(self, attention: AttentionBackend, kv: KVTensors) -> StepGraphs | None:
        if not self.max_cudagraph_capture_size or not isinstance(attention, GraphAttentionBackend):
            return None
        return StepGraphs(
            self._decoder,
            attention,
            kv,
            max_size=self.max_cudagraph_capture_size,
            max_model_len=self.max_model_len,
            record=CudaRecorder(self._device),
        )

    def _step(self, plan: StepPlan, batch: InputBatch | None, kv: KVTensors) -> torch.Tensor | None:
        """The sampled tokens, on the device; None for copies alone."""
        if self._swap is not None:
            self._swap.copy_out(kv, plan.swap_out)
            self._swap.copy_in(kv, plan.swap_in)
        return None if batch is None else self._runner.run(batch, self._attention, kv, graphs=self._graphs)

    def _measure(self, scheduled: Sequence[ScheduledRequest]) -> MemoryProfile:
        # A backend of its own, so that the workspace that the backend in use may have grown already counts too.
        attention = make_attention(self.attention_backend, self._attention_spec)
        on_cpu = self._device.type == "cpu"
        num_layers = min(CPU_PROFILE_LAYERS, self.arch.num_layers) if on_cpu else self.arch.num_layers
        kv = self._make_kv(num_layers, 1, PROFILE_BLOCK_SIZE)

        def step() -> None:
            batch = self._runner.lay_out(scheduled, kv.block_size)
            self._runner.run(batch, attention, kv, num_layers=num_layers).tolist()

        if on_cpu:
            assert self._device_memory_bytes is not None
            total, other, peak = self._device_memory_bytes, 0, peak_bytes_cpu(step)
        else:
            # Blocks are swapped before the step's tokens, which take over the memory that their staging held.
            peak = max(peak_bytes_cuda(step, self._device), staging_bytes(self._device))
            # After the step: libraries load their kernels at the first use, outside of torch's allocator.
            total, other = cuda_total_and_other(self._device)
            other += graph_bytes(lambda: self._make_graphs(attention, kv), self._device)
        total = self._device_memory_bytes or total
        return MemoryProfile(total=total, weights=self.weights_bytes, other=other, peak_activation=peak)


def _size(memory: KVTensors | SwapSpace | None) -> tuple[int, int] | None:
    return None if memory is None else (memory.num_blocks, memory.block_size)
