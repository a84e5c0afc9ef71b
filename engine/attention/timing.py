"""How long attention alone takes on the device at hand, on made-up steps: for choosing tile shapes, and for checks.

A call is captured in a CUDA graph, so that the time is the device's and not that of launching. Numbers are random,
pages lie scattered, and keys and values come from memory: a call reads other layers than the one before it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from engine.attention.base import AttentionBackend, AttentionMetadata, AttentionSpec
from engine.attention.kv_tensors import KVTensors

# More than the last-level cache of any card, so that a layer's keys are gone from it when its turn comes again.
_COLD_BYTES = 256 << 20
_MAX_LAYERS = 64
_REPEATS = 5
# Replays per measurement.
_REPLAYS = 10
# Before the first: an idle card needs a while to bring its clocks up.
_WARMUP_S = 0.05


@dataclass(frozen=True, slots=True)
class AttentionTiming:
    """One layer's attention in one step.

    Attributes:
        seconds: time on the device, the median of several; wall time on the CPU.
        bytes_moved: keys, values and queries read, keys, values and result written, each once.
        flops: of the two matrix products, over the pairs of tokens that the causal mask lets attend.
    """

    seconds: float
    bytes_moved: int
    flops: int

    @property
    def bytes_per_s(self) -> float:
        """Memory rate."""
        return self.bytes_moved / self.seconds

    @property
    def flops_per_s(self) -> float:
        """Arithmetic rate."""
        return self.flops / self.seconds


def time_decode(
    backend: AttentionBackend, spec: AttentionSpec, *, batch: int, context: int, block_size: int = 16
) -> AttentionTiming:
    """Time a step of `batch` requests, each of one token that attends to `context` tokens, itself included."""
    return _time(backend, spec, np.full(batch, context - 1), np.ones(batch, dtype=np.int64), block_size)


def time_prefill(
    backend: AttentionBackend, spec: AttentionSpec, *, prompts: int, tokens: int, block_size: int = 16
) -> AttentionTiming:
    """Time a step of whole prompts of `tokens` tokens each, 2 or more."""
    return _time(backend, spec, np.zeros(prompts, dtype=np.int64), np.full(prompts, tokens), block_size)


def _time(
    backend: AttentionBackend, spec: AttentionSpec, computed: np.ndarray, counts: np.ndarray, block_size: int
) -> AttentionTiming:
    metadata, num_blocks = _made_up_step(computed, counts, block_size)
    num_tokens, dim = int(counts.sum()), spec.head_dim
    kv_token_bytes = 2 * spec.num_kv_heads * dim * spec.page_dtype.itemsize
    on_card = spec.device.type == "cuda"
    num_layers = min(-(-_COLD_BYTES // (num_blocks * block_size * kv_token_bytes)), _MAX_LAYERS) if on_card else 1

    kv = KVTensors(num_layers, num_blocks, block_size, backend.page_shape(block_size), spec.page_dtype, spec.device)
    for pages in (kv.keys, kv.values):
        for layer in pages:
            layer.copy_(torch.randn(layer.shape, dtype=spec.dtype, device=spec.device))
    heads = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    qkv = torch.randn(num_tokens, sum(heads), dim, dtype=spec.dtype, device=spec.device)
    query, key, value = qkv.split(heads, dim=1)
    step = backend.begin_step(metadata, kv)

    def every_layer() -> None:
        for layer in range(num_layers):
            step.attend(layer, query, key, value)

    pairs = _attended_pairs(computed, counts, spec.sliding_window)
    context_tokens = int((computed + counts).sum())
    if spec.sliding_window is not None:
        context_tokens = int(np.minimum(computed + counts, spec.sliding_window + counts - 1).sum())
    row_bytes = 2 * (spec.num_heads + spec.num_kv_heads) * dim * spec.dtype.itemsize + kv_token_bytes
    return AttentionTiming(
        seconds=_seconds(every_layer, spec.device) / num_layers,
        bytes_moved=context_tokens * kv_token_bytes + num_tokens * row_bytes,
        flops=4 * spec.num_heads * dim * pairs,
    )


def _made_up_step(computed: np.ndarray, counts: np.ndarray, block_size: int) -> tuple[AttentionMetadata, int]:
    """A step of requests that all decode or all prefill, and the number of blocks that it takes."""
    ends = computed + counts
    width = -(-int(ends.max()) // block_size)
    num_blocks = len(ends) * width
    tables = np.random.default_rng(0).permutation(num_blocks).reshape(len(ends), width)
    request = np.repeat(np.arange(len(ends)), counts)
    starts = np.concatenate([[0], counts.cumsum()])
    position = np.arange(len(request)) - starts[request] + computed[request]
    metadata = AttentionMetadata(
        num_decodes=int(np.count_nonzero(counts == 1)),
        query_starts=starts,
        context_lens=ends,
        block_tables=tables,
        slot_mapping=tables[request, position // block_size] * block_size + position % block_size,
        opened_blocks=np.zeros(0, dtype=np.int64),
    )
    return metadata, num_blocks


def _attended_pairs(computed: np.ndarray, counts: np.ndarray, window: int | None) -> int:
    """Pairs of a token of the step and a token that it attends to."""
    pairs = 0
    for before, count in zip(computed.tolist(), counts.tolist(), strict=True):
        seen = np.arange(before + 1, before + count + 1)
        pairs += int(seen.sum() if window is None else np.minimum(seen, window).sum())
    return pairs


def _seconds(call: Callable[[], None], device: torch.device) -> float:
    """Median time of a call on the device; the first call, which may compile, is not counted."""
    call()
    if device.type != "cuda":
        return float(np.median([_wall_seconds(call) for _ in range(_REPEATS)]))
    with torch.cuda.device(device):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        warm_s = time.perf_counter() + _WARMUP_S
        while time.perf_counter() < warm_s:
            for _ in range(_REPLAYS):
                graph.replay()
            torch.cuda.synchronize()
        times = []
        for _ in range(_REPEATS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(_REPLAYS):
                graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3 / _REPLAYS)
        return float(np.median(times))


def _wall_seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
