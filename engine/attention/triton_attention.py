"""The `triton` backend: a step's work is cut on the host, travels in one table, and is done in at most four launches.

One kernel writes keys and values, one attends (launched once for single tokens and once for the tiles of chunks,
each with its own tile shape), one joins contexts that were split. None reads a position behind a context, so blocks
need not be wiped for it: what a former owner left there is never seen.

For CUDA graphs, `TritonAttention.graph_step` gives a step whose grids and addresses depend on its `StepBounds` only:

    step = backend.graph_step(kv, StepBounds(num_tokens=32, num_chunks=0, num_pages=...))
    hidden = model(..., step)            # once for warm-up, then once under capture; all rows are padding so far
    step.fill(metadata); graph.replay()  # for every step with up to 32 rows

`fill` is one copy from pinned memory in the order of the stream, so the next step may be filled and launched while
the one before still runs. Everything compiles when a step is first made for a block size; nothing does at a step.

The module imports Triton, so only `engine.attention.registry` may import it, and only when it is asked for.
"""

from contextlib import AbstractContextManager, nullcontext

import torch

from engine.attention import triton_kernels as kernels
from engine.attention.base import AttentionMetadata, AttentionSpec, StepBounds
from engine.attention.kv_tensors import KVTensors
from engine.attention.triton_shapes import TileShape, TileShapes, padded, padded_dim
from engine.attention.triton_tables import StepWork, TableLayout, WorkShape, cut_step

# Parts of contexts to aim at for each multiprocessor: two or so run at a time, and as many again level out the end.
_PARTS_PER_MULTIPROCESSOR = 4
# What stands for them where kernels are interpreted on the CPU.
_MULTIPROCESSORS_CPU = 8
_LOG2_E = 1.4426950408889634


class TritonAttention:
    """The `triton` backend.

    Args:
        spec: on a CUDA device, or on the CPU where Triton interprets its kernels.
        shapes: tile shapes for single tokens and for chunks.
    """

    def __init__(self, spec: AttentionSpec, shapes: TileShapes) -> None:
        self.spec = spec
        self.shapes = shapes
        self.group = spec.num_heads // spec.num_kv_heads
        on_card = spec.device.type == "cuda"
        multiprocessors = (
            torch.cuda.get_device_properties(spec.device).multi_processor_count if on_card else _MULTIPROCESSORS_CPU
        )
        self.work_shape = WorkShape(
            part_keys=shapes.decode.keys,
            tile_tokens=shapes.prefill.rows // self.group,
            tile_keys=shapes.prefill.keys,
            extra_parts=-(-_PARTS_PER_MULTIPROCESSOR * multiprocessors // spec.num_kv_heads),
            sliding_window=spec.sliding_window,
        )
        self._parts: tuple[torch.Tensor, torch.Tensor] | None = None
        self._graph_table = torch.empty(0, dtype=torch.int32, device=spec.device)
        self._compiled: set[int] = set()

    def page_shape(self, block_size: int) -> tuple[int, ...]:
        """See `AttentionBackend.page_shape`."""
        return (self.spec.num_kv_heads, block_size, self.spec.head_dim)

    def begin_step(self, metadata: AttentionMetadata, kv: KVTensors) -> "TritonStep":
        """See `AttentionBackend.begin_step`."""
        self._compile_for(kv)
        work = cut_step(metadata, kv.block_size, self.work_shape)
        layout = TableLayout.exactly(work)
        table = layout.pack(work, pinned=self.spec.device.type == "cuda")
        return TritonStep(self, kv, layout, table.to(self.spec.device, non_blocking=True))

    def graph_step(self, kv: KVTensors, bounds: StepBounds) -> "TritonGraphStep":
        """See `GraphAttentionBackend.graph_step`."""
        self._compile_for(kv)
        size = TableLayout.up_to(bounds, self.work_shape).starts[-1]
        if len(self._graph_table) < size:
            # Steps that were made before keep the memory that their graphs know.
            self._graph_table = torch.empty(size, dtype=torch.int32, device=self.spec.device)
        return TritonGraphStep(self, kv, bounds, self._graph_table)

    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the results of split contexts wait: float32 `[parts, heads, head_dim]`, and `[parts, heads]`.

        One for all steps, as steps run one after another. A row in `n` parts has `n - 1` extra ones, so there are no
        more than twice as many parts of split rows as extra ones. Taken at the first step, so that it counts as
        memory of a step.
        """
        if self._parts is None:
            shape = (2 * self.work_shape.extra_parts, self.spec.num_heads, self.spec.head_dim)
            out = torch.empty(shape, dtype=torch.float32, device=self.spec.device)
            self._parts = out, torch.empty(shape[:2], dtype=torch.float32, device=self.spec.device)
        return self._parts

    def on_device(self) -> AbstractContextManager[object]:
        """Triton launches on the current device, whatever device the tensors are on."""
        return torch.cuda.device(self.spec.device) if self.spec.device.type == "cuda" else nullcontext()

    def _compile_for(self, kv: KVTensors) -> None:
        """Launch every kernel on nothing, for a block size that is new. Compiled kernels are kept on disk as well."""
        if kv.block_size in self._compiled:
            return
        self._compiled.add(kv.block_size)
        spec = self.spec
        layout = TableLayout(num_slots=1, num_parts=1, num_tiles=1, num_joins=1, num_pages=1)
        table = layout.pack(StepWork.nothing(), pinned=False).to(spec.device)
        qkv = torch.zeros(
            1, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim, dtype=spec.dtype, device=spec.device
        )
        query, key, value = qkv.split([spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], dim=1)
        TritonStep(self, kv, layout, table).attend(0, query, key, value)


class TritonStep:
    """One step of the `triton` backend, its table on the device."""

    def __init__(self, backend: TritonAttention, kv: KVTensors, layout: TableLayout, table: torch.Tensor) -> None:
        self._backend = backend
        self._spec = backend.spec
        self._kv = kv
        self._layout = layout
        self._table = table
        self._part_out, self._part_lse = backend.parts()
        self._slots, self._part_items, self._tile_items, self._joins, self._page_ids = (
            table[start:] for start in layout.starts[:-1]
        )

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See `AttentionStep.attend`."""
        spec, layout, shapes = self._spec, self._layout, self._backend.shapes
        query, key, value = _with_adjacent_numbers(query), _with_adjacent_numbers(key), _with_adjacent_numbers(value)
        keys, values = self._kv.keys[layer], self._kv.values[layer]  # [num_blocks, kv_heads, block_size, head_dim]
        out = torch.empty(len(query), spec.num_heads, spec.head_dim, dtype=query.dtype, device=query.device)
        with self._backend.on_device():
            self._write(keys, values, key, value)
            if layout.num_parts:
                self._attend_items(out, query, keys, values, self._part_items, layout.num_parts, shapes.decode)
            if layout.num_tiles:
                self._attend_items(out, query, keys, values, self._tile_items, layout.num_tiles, shapes.prefill)
            if layout.num_joins:
                kernels.join_parts[(layout.num_joins, spec.num_heads)](
                    out,
                    self._part_out,
                    self._part_lse,
                    self._joins,
                    HEADS=spec.num_heads,
                    HEAD_DIM=spec.head_dim,
                    PADDED_DIM=padded_dim(spec.head_dim),
                    num_warps=4,
                )
        return out.view(len(query), spec.num_heads * spec.head_dim)

    def _write(self, keys: torch.Tensor, values: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        spec = self._spec
        kernels.write_kv[(self._layout.num_slots,)](
            keys,
            values,
            key,
            value,
            self._slots,
            key.stride(0),
            key.stride(1),
            value.stride(0),
            value.stride(1),
            KV_HEADS=spec.num_kv_heads,
            PADDED_KV_HEADS=padded(spec.num_kv_heads),
            HEAD_DIM=spec.head_dim,
            PADDED_DIM=padded_dim(spec.head_dim),
            BLOCK_SIZE=self._kv.block_size,
            num_warps=4,
        )

    def _attend_items(
        self,
        out: torch.Tensor,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        items: torch.Tensor,
        num_items: int,
        shape: TileShape,
    ) -> None:
        spec = self._spec
        kernels.attend_tiles[(num_items, spec.num_kv_heads)](
            out,
            self._part_out,
            self._part_lse,
            query,
            keys,
            values,
            items,
            self._page_ids,
            query.stride(0),
            query.stride(1),
            spec.head_dim**-0.5 * _LOG2_E,
            GROUP=self._backend.group,
            HEAD_DIM=spec.head_dim,
            PADDED_DIM=padded_dim(spec.head_dim),
            KV_HEADS=spec.num_kv_heads,
            BLOCK_SIZE=self._kv.block_size,
            WINDOW=spec.sliding_window or 0,
            TILE_ROWS=shape.rows,
            TILE_KEYS=shape.keys,
            # Without it the matrix units would round float32 to a 10-bit mantissa.
            PRECISION="ieee" if spec.dtype == torch.float32 else "tf32",
            num_warps=shape.num_warps,
            num_stages=shape.num_stages,
        )


class TritonGraphStep(TritonStep):
    """A step to capture; see `engine.attention.base.GraphStep`."""

    def __init__(self, backend: TritonAttention, kv: KVTensors, bounds: StepBounds, table: torch.Tensor) -> None:
        super().__init__(backend, kv, TableLayout.up_to(bounds, backend.work_shape), table)
        self._bounds = bounds
        self._send(StepWork.nothing())

    def fits(self, metadata: AttentionMetadata) -> bool:
        """See `GraphStep.fits`."""
        num_pages = (-(-metadata.context_lens // self._kv.block_size)).sum()
        return (
            len(metadata.slot_mapping) <= self._bounds.num_tokens
            and len(metadata.context_lens) - metadata.num_decodes <= self._bounds.num_chunks
            and num_pages <= self._bounds.num_pages
        )

    def fill(self, metadata: AttentionMetadata) -> None:
        """See `GraphStep.fill`."""
        if not self.fits(metadata):
            raise ValueError(
                f"a step of {len(metadata.slot_mapping)} tokens for {len(metadata.context_lens)} requests, "
                f"{metadata.num_decodes} of them decoding, does not fit a graph for {self._bounds}"
            )
        self._send(cut_step(metadata, self._kv.block_size, self._backend.work_shape))

    def _send(self, work: StepWork) -> None:
        table = self._layout.pack(work, pinned=self._spec.device.type == "cuda")
        self._table[: len(table)].copy_(table, non_blocking=True)


def _with_adjacent_numbers(rows: torch.Tensor) -> torch.Tensor:
    """Rows `[tokens, heads, head_dim]` as the kernels read them: a head's numbers one after another."""
    return rows if rows.stride(2) == 1 else rows.contiguous()
