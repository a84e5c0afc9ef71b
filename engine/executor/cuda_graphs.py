"""Small steps as CUDA graphs: one launch in the place of hundreds, so that the host is not what a decode waits for.

A graph repeats the same kernels on the same memory. So a step is padded to the next of a few sizes, its numbers are
copied to where the graph reads them, and what it wrote is read before any graph runs again. Padding rows are tokens
of position 0 whose keys and values are written nowhere, and whose logits nobody reads.

Graphs belong to the KV tensors that they were captured over, and are captured with them: to capture takes longer than
a step may, so it must not happen while requests wait.
"""

import gc
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from engine.attention.base import AttentionMetadata, GraphAttentionBackend, GraphStep, StepBounds
from engine.attention.kv_tensors import KVTensors
from engine.executor.input_batch import InputBatch
from engine.executor.memory import cuda_used_by
from engine.model.decoder import Decoder

# Padding costs arithmetic, and each size memory: in between powers of two where steps take longest.
_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
# A step of more tokens keeps the device busy for longer than its launches take. Every row of a graph has its logits
# worked out, which with a chunk in it most rows would not need.
_MIXED_SIZES = (16, 32, 64, 128, 256)
_MIXED_CHUNKS = 8
# Contexts of a step may share blocks; beyond so many times the cache's blocks it is not captured.
_SHARING = 4

Replay = Callable[[], None]


class Recorder(Protocol):
    """What turns work into something that repeats it."""

    def __call__(self, work: Callable[[], None]) -> Replay:
        """Do the work, and return what does it again on the same memory."""
        ...


class CudaRecorder:
    """Captures CUDA graphs that share one pool of memory.

    They may share it as they run one after another, and as nothing that one leaves there is read after the next began.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], None]) -> Replay:
        """See `Recorder`. Waits for the device."""
        with torch.cuda.device(self._device):
            # Libraries set themselves up at their first call, and kernels compile, which cannot be captured.
            work()
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the device meanwhile; only this one's calls are part of the graph.
            with _no_collection(), torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                work()
        return graph.replay


@contextmanager
def _no_collection() -> Iterator[None]:
    """What a finalizer asks of the device (to synchronize, to destroy a graph) would end a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class StepGraph:
    """Steps of up to `num_tokens` tokens.

    Args:
        attention: refilled before each replay.
        logits: `[num_tokens or more, vocab]`, where the result goes. Of the graphs' own memory nothing is kept, so
            that others may use it.
        record: makes the graph.
    """

    def __init__(
        self, decoder: Decoder, attention: GraphStep, num_tokens: int, logits: torch.Tensor, record: Recorder
    ) -> None:
        device = logits.device
        self._decoder = decoder
        self._attention = attention
        self.num_tokens = num_tokens
        # Rows as in `InputBatch.arrays`.
        self._inputs = torch.zeros(5, num_tokens, dtype=torch.int64, device=device)
        self._tokens = torch.zeros(num_tokens, dtype=torch.int64, device=device)
        self._logits = logits[:num_tokens]
        self._replay = record(self._work)

    def replay(self, batch: InputBatch, last_tokens: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a step within the graph's bounds.

        Args:
            last_tokens: see `InputBatch.to`.

        Returns:
            Logits `[samples, vocab]`, and the likeliest token of each row, int64 `[samples]`; both are overwritten by
            the next replay of any graph.
        """
        staging = torch.zeros(self._inputs.shape, dtype=torch.int64, pin_memory=self._inputs.is_cuda)
        for row, values in zip(staging.numpy(), batch.arrays, strict=True):
            row[: len(values)] = values
        self._inputs.copy_(staging, non_blocking=True)
        if num_pending := len(batch.pending_rows):
            assert last_tokens is not None
            rows, sources = self._inputs[3:, :num_pending]
            self._inputs[0].index_copy_(0, rows, last_tokens.index_select(0, sources))
        self._attention.fill(batch.attention)
        self._replay()
        num_samples = len(batch.sample_rows)
        return self._logits[:num_samples], self._tokens[:num_samples]

    def _work(self) -> None:
        token_ids, positions, sample_rows, _, _ = self._inputs
        logits = self._decoder.forward(token_ids, positions, self._attention, sample_rows)
        torch.argmax(logits, dim=-1, out=self._tokens)
        self._logits.copy_(logits)


class StepGraphs:
    """The graphs over one KV cache.

    Args:
        decoder, backend, kv: what they run, and on what.
        max_size: tokens of the largest.
        max_model_len: longest request in tokens.
        record: makes graphs.

    Attributes:
        num_captured: how many there are.
    """

    def __init__(
        self,
        decoder: Decoder,
        backend: GraphAttentionBackend,
        kv: KVTensors,
        *,
        max_size: int,
        max_model_len: int,
        record: Recorder,
    ) -> None:
        self._decoder = decoder
        self._backend = backend
        self._kv = kv
        self._blocks_per_request = -(-max_model_len // kv.block_size)
        self._record = record
        self._logits = torch.empty(max_size, decoder.arch.vocab_size, dtype=decoder.dtype, device=kv.keys.device)
        self.sizes = capture_sizes(max_size)
        self._mixed_sizes = [size for size in _MIXED_SIZES if size <= max_size]
        self._graphs: dict[StepBounds, StepGraph] = {}
        # The largest first, so that all share its memory.
        self._backend.graph_step(kv, self._bounds(self.sizes[-1], 0))

    @property
    def num_captured(self) -> int:
        return len(self._graphs)

    def find(self, metadata: AttentionMetadata) -> StepGraph | None:
        """The smallest captured graph for a step; None when there is none so large."""
        num_tokens, num_requests = len(metadata.slot_mapping), len(metadata.context_lens)
        num_chunks = num_requests - metadata.num_decodes
        sizes = self._mixed_sizes if num_chunks else self.sizes
        place = bisect_left(sizes, num_tokens)
        if place == len(sizes) or num_chunks > _MIXED_CHUNKS:
            return None
        bounds = self._bounds(sizes[place], _MIXED_CHUNKS if num_chunks else 0)
        num_pages = int((-(-metadata.context_lens // self._kv.block_size)).sum())
        return self._graphs.get(bounds) if num_pages <= bounds.num_pages else None

    @property
    def all_bounds(self) -> list[StepBounds]:
        """What there are graphs for, once captured: the largest first, whose memory then does for the others."""
        decodes = [self._bounds(size, 0) for size in reversed(self.sizes)]
        return decodes + [self._bounds(size, _MIXED_CHUNKS) for size in reversed(self._mixed_sizes)]

    def capture_all(self) -> None:
        """Capture every graph."""
        for bounds in self.all_bounds:
            self.capture(bounds)

    @torch.inference_mode()
    def capture(self, bounds: StepBounds) -> None:
        """Capture the graph for steps within bounds."""
        attention = self._backend.graph_step(self._kv, bounds)
        self._graphs[bounds] = StepGraph(self._decoder, attention, bounds.num_tokens, self._logits, self._record)

    def _bounds(self, num_tokens: int, num_chunks: int) -> StepBounds:
        # Not by the size of the step alone: the table of page ids is one for all graphs.
        num_pages = min(self.sizes[-1] * self._blocks_per_request, _SHARING * self._kv.num_blocks)
        return StepBounds(num_tokens, num_chunks, num_pages)


def graph_bytes(make: Callable[[], StepGraphs | None], device: torch.device) -> int:
    """What all graphs take of a card, found by capturing two.

    Their pool is as large as the largest needs, and each graph has notes of its own.

    Args:
        make: makes graphs of which none is captured yet; None where there are to be none.
    """
    made: list[StepGraphs | None] = []
    buffers = cuda_used_by(lambda: made.append(make()), device)
    graphs = made[0]
    if graphs is None:
        return 0
    largest, *others = graphs.all_bounds
    pool = cuda_used_by(lambda: graphs.capture(largest), device)
    if not others:
        return buffers + pool
    return buffers + pool + len(others) * cuda_used_by(lambda: graphs.capture(others[-1]), device)


def capture_sizes(max_size: int) -> list[int]:
    """The sizes of decode graphs, in tokens, up to and with `max_size` (at least 1)."""
    return [size for size in _SIZES if size < max_size] + [max_size]
