"""The `cpu` backend: keys and values are read where they lie, by a compiled kernel that shares nothing with a matrix.

The reference gathers every page before it multiplies, which writes and reads all keys and values once more. Here a
task is one KV head of one request; its query heads are rows of one product with that head's pages.
"""

import numpy as np
import torch

from engine.attention.base import AttentionBackend, AttentionMetadata, AttentionSpec, AttentionStep
from engine.attention.kv_tensors import KVTensors
from engine.attention.reference import ReferenceAttention
from engine.errors import UserError
from engine.native.kernels import PAGE_NUMBERS, NativeKernels
from engine.native.library import native_library, why_not_native

# Tokens that the kernel multiplies at once: keys lie in panels of so many, and so wide are its slices of a head.
PANEL_TOKENS = 16
# Query vectors (rows of a chunk times query heads) per task: enough to use a page often while it is in the cache.
_TASK_VECTORS = 48


def make_cpu(spec: AttentionSpec) -> AttentionBackend:
    """The backend for `spec`.

    Raises:
        UserError: no CPU, another type than float32, a KV cache of 8 bits, or no compiled kernels.
    """
    library = native_library()
    if spec.device.type != "cpu" or spec.dtype is not torch.float32:
        raise UserError(
            f"attention backend 'cpu' is not possible for {spec.dtype} on {spec.device}: it computes float32 on the "
            "CPU; choose attention_backend=auto or reference"
        )
    if spec.page_dtype not in PAGE_NUMBERS:
        raise UserError(
            f"attention backend 'cpu' is not possible with a KV cache in {spec.page_dtype}: "
            "choose kv_cache_dtype=auto, float16 or bfloat16, or attention_backend=reference"
        )
    if library is None:
        raise UserError(
            f"attention backend 'cpu' is not possible: {why_not_native()}; choose attention_backend=auto or reference"
        )
    return CpuAttention(spec, NativeKernels(library))


class CpuAttention:
    """See the module. Blocks or heads that no panels fill are left to the reference, pages and all."""

    def __init__(self, spec: AttentionSpec, kernels: NativeKernels) -> None:
        self.spec = spec
        self.kernels = kernels
        self._reference = ReferenceAttention(spec)

    def page_shape(self, block_size: int) -> tuple[int, ...]:
        """See `AttentionBackend.page_shape`. The kernel reads keys as `[kv_heads, panels, head_dim, PANEL_TOKENS]`."""
        return self._reference.page_shape(block_size)

    def begin_step(self, metadata: AttentionMetadata, kv: KVTensors) -> AttentionStep:
        """See `AttentionBackend.begin_step`."""
        if kv.block_size % PANEL_TOKENS or self.spec.head_dim % PANEL_TOKENS:
            return self._reference.begin_step(metadata, kv)
        return _CpuStep(self, metadata, kv)

    def pieces(self, metadata: AttentionMetadata) -> np.ndarray:
        """The batch in pieces of at most `_TASK_VECTORS` query vectors: see `NativeKernels.attend`."""
        most_rows = max(_TASK_VECTORS * self.spec.num_kv_heads // self.spec.num_heads, 1)
        rows = np.diff(metadata.query_starts)
        counts = -(-rows // most_rows)
        request = np.repeat(np.arange(len(rows)), counts)
        # Which of its request's pieces each one is.
        number = np.arange(len(request)) - np.repeat(counts.cumsum() - counts, counts)
        begin = number * most_rows
        size = np.minimum(most_rows, rows[request] - begin)
        position = (metadata.context_lens - rows)[request] + begin
        return np.stack([request, metadata.query_starts[request] + begin, size, position], axis=1)


class _CpuStep:
    """One step of the `cpu` backend."""

    def __init__(self, backend: CpuAttention, metadata: AttentionMetadata, kv: KVTensors) -> None:
        self._backend = backend
        self._kv = kv
        self._tables = np.ascontiguousarray(metadata.block_tables)
        self._slots = np.ascontiguousarray(metadata.slot_mapping)
        self._pieces = np.ascontiguousarray(backend.pieces(metadata))

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See `AttentionStep.attend`."""
        spec, kernels, block_size = self._backend.spec, self._backend.kernels, self._kv.block_size
        keys, values = self._kv.keys[layer], self._kv.values[layer]
        kernels.write_pages(key, value, keys, values, self._slots, block_size)
        return kernels.attend(
            query,
            keys,
            values,
            self._tables,
            self._pieces,
            kv_heads=spec.num_kv_heads,
            block_size=block_size,
            window=spec.sliding_window,
        )
