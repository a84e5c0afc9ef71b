"""Stand-ins for what a CUDA graph needs, on the CPU: attention that takes padded steps, and a recorder."""

from collections.abc import Callable

import torch

from engine.attention.base import AttentionMetadata, AttentionStep, GraphAttentionBackend, StepBounds
from engine.attention.kv_tensors import KVTensors
from engine.attention.reference import ReferenceAttention
from engine.executor.cuda_graphs import StepGraphs
from engine.executor.torch_executor import TorchExecutor


class PaddedStep:
    """See `engine.attention.base.GraphStep`. Rows beyond the filled ones are written nowhere, and give zeros."""

    def __init__(self, backend: "PaddedReference", kv: KVTensors, bounds: StepBounds) -> None:
        self._backend = backend
        self._kv = kv
        self._bounds = bounds
        self._step: AttentionStep | None = None
        self._rows = 0

    def fits(self, metadata: AttentionMetadata) -> bool:
        num_chunks = len(metadata.context_lens) - metadata.num_decodes
        num_pages = int((-(-metadata.context_lens // self._kv.block_size)).sum())
        rows = len(metadata.slot_mapping)
        bounds = self._bounds
        return rows <= bounds.num_tokens and num_chunks <= bounds.num_chunks and num_pages <= bounds.num_pages

    def fill(self, metadata: AttentionMetadata) -> None:
        if not self.fits(metadata):
            raise ValueError("does not fit")
        self._step = self._backend.begin_step(metadata, self._kv)
        self._rows = len(metadata.slot_mapping)

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        assert len(query) == self._bounds.num_tokens
        rows, out = self._rows, torch.zeros(len(query), query.shape[1] * query.shape[2])
        if self._step is not None:
            out[:rows] = self._step.attend(layer, query[:rows], key[:rows], value[:rows])
        return out


class PaddedReference(ReferenceAttention):
    """The `reference` backend with steps to capture; remembers for which bounds."""

    def graph_step(self, kv: KVTensors, bounds: StepBounds) -> PaddedStep:
        return PaddedStep(self, kv, bounds)


class CountingRecorder:
    """Replays by doing the work again. Counts both."""

    def __init__(self) -> None:
        self.recorded = 0
        self.replayed = 0

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1
        work()

        def replay() -> None:
            self.replayed += 1
            work()

        return replay


def capture_on_cpu(
    executor: TorchExecutor, max_size: int, backend: GraphAttentionBackend | None = None
) -> CountingRecorder:
    """Let a CPU executor run its small steps as graphs, from the next time on that it allocates a KV cache."""
    recorder = CountingRecorder()
    graph_backend = backend or PaddedReference(executor._attention_spec)
    executor._attention = graph_backend

    def make(_: object, kv: KVTensors) -> StepGraphs:
        return StepGraphs(
            executor._decoder,
            graph_backend,
            kv,
            max_size=max_size,
            max_model_len=executor.max_model_len,
            record=recorder,
        )

    executor._make_graphs = make  # type: ignore[method-assign, assignment]
    return recorder
