"""Attention in plain torch operations: right on every device, and fast enough on the CPU.

Pages are `[kv_heads, block_size, head_dim]`, so that gathering a request's pages, head by head, gives contiguous
keys `[kv_heads, context, head_dim]` in one `index_select` of long rows.

Decodes are taken in groups of similar context: one gather and one batched product serve a whole group, and what
was gathered is still in the processor's cache when it is used. The query heads that share a KV head are rows of
one product with that head, so nothing is repeated.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from engine.attention.base import AttentionMetadata, AttentionSpec
from engine.attention.kv_tensors import KVTensors, as_words, to_pages

# Gathered keys of one group. On the CPU they should stay in the last-level cache between gather and use.
_GROUP_BYTES = {"cpu": 4 << 20}
_GROUP_BYTES_ACCELERATOR = 256 << 20
# Tokens of padding at which another group costs less than the padding does (measured on two AVX2 cores).
_GROUP_PADDING_TOKENS = {"cpu": 512}
_GROUP_PADDING_TOKENS_ACCELERATOR = 1 << 16
# Rows of a chunk that attend together when there is a context before the chunk.
_TILE_ROWS = 256


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Decodes that are computed together, all padded to `length` tokens.

    Attributes:
        start, stop: rows of the batch.
        pages: `[group * kv_heads * blocks]`, rows of the pages `[num_blocks * kv_heads, block_size * head_dim]`.
        length: tokens gathered per request.
        bias: `[group * kv_heads, 1, length]`, 0 where the request attends, else minus infinity.
    """

    start: int
    stop: int
    pages: torch.Tensor
    length: int
    bias: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One request's rows.

    Attributes:
        start, stop: rows of the batch.
        context: tokens before the chunk that its rows may attend to.
        pages: as in `_DecodeGroup`; None when there is no context and the chunk's own keys suffice.
        skipped: tokens of the first page that lie before `context`.
    """

    start: int
    stop: int
    context: int
    pages: torch.Tensor | None
    skipped: int


class ReferenceAttention:
    """The `reference` backend. Keeps its workspace from step to step."""

    def __init__(self, spec: AttentionSpec) -> None:
        self.spec = spec
        kind = spec.device.type
        self._group_bytes = _GROUP_BYTES.get(kind, _GROUP_BYTES_ACCELERATOR)
        self._group_padding = _GROUP_PADDING_TOKENS.get(kind, _GROUP_PADDING_TOKENS_ACCELERATOR)
        self._gathered = torch.empty(0, dtype=spec.page_dtype, device=spec.device)
        self._tile_bias = torch.empty(_TILE_ROWS, 0, dtype=spec.dtype, device=spec.device)

    def page_shape(self, block_size: int) -> tuple[int, ...]:
        """See `AttentionBackend.page_shape`."""
        return (self.spec.num_kv_heads, block_size, self.spec.head_dim)

    def begin_step(self, metadata: AttentionMetadata, kv: KVTensors) -> "_ReferenceStep":
        """See `AttentionBackend.begin_step`."""
        if len(metadata.opened_blocks):
            kv.wipe(self._to_device(metadata.opened_blocks))
        num_requests = len(metadata.context_lens)
        return _ReferenceStep(
            self,
            kv,
            self._to_device(self._write_rows(metadata.slot_mapping, kv.block_size)),
            [self._decode_group(metadata, kv.block_size, *bounds) for bounds in self._cut(metadata, kv.block_size)],
            [self._chunk(metadata, kv.block_size, r) for r in range(metadata.num_decodes, num_requests)],
        )

    def gather(self, pages: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Rows of `pages` `[rows, block_size * head_dim]` as `spec.dtype`.

        They lie in a workspace that the next call overwrites, unless they had to be converted.
        """
        size = index.numel() * pages.shape[1]
        if self._gathered.numel() < size:
            self._gathered = torch.empty(size, dtype=self.spec.page_dtype, device=self.spec.device)
        out = self._gathered[:size].view(index.numel(), pages.shape[1])
        torch.index_select(as_words(pages), 0, index, out=as_words(out))
        return out.to(self.spec.dtype)

    def tile_bias(self, rows: int, before: int) -> torch.Tensor:
        """Causal bias `[rows, before + rows]` for rows with `before` tokens before the first of them.

        A window on one matrix that serves every tile: shifting a causal mask to the side is the same as moving
        its tile along the sequence.
        """
        width = self._tile_bias.shape[1] - _TILE_ROWS
        if width < before:
            width = max(before, 2 * width)
            column = torch.arange(width + _TILE_ROWS, device=self.spec.device)
            last = torch.arange(_TILE_ROWS, device=self.spec.device)[:, None] + width
            hidden = column > last
            if self.spec.sliding_window is not None:
                hidden |= column <= last - self.spec.sliding_window
            self._tile_bias = torch.zeros(hidden.shape, dtype=self.spec.dtype, device=self.spec.device)
            self._tile_bias.masked_fill_(hidden, float("-inf"))
        return self._tile_bias[:rows, width - before : width + rows]

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.spec.device, non_blocking=True)

    def _write_rows(self, slots: np.ndarray, block_size: int) -> np.ndarray:
        """Rows of the pages `[num_blocks * kv_heads * block_size, head_dim]` for each token and KV head."""
        block, offset = np.divmod(slots, block_size)
        heads = np.arange(self.spec.num_kv_heads)
        return (((block * self.spec.num_kv_heads)[:, None] + heads) * block_size + offset[:, None]).reshape(-1)

    def _page_rows(self, blocks: np.ndarray) -> torch.Tensor:
        """Rows of the pages `[num_blocks * kv_heads, ...]`: `[..., blocks]` becomes `[..., kv_heads, blocks]`, flat."""
        heads = np.arange(self.spec.num_kv_heads)[:, None]
        return self._to_device((blocks[..., None, :] * self.spec.num_kv_heads + heads).reshape(-1))

    def _first_attended(self, position: np.ndarray) -> np.ndarray:
        """First position that a token at `position` attends to."""
        window = self.spec.sliding_window
        return np.zeros_like(position) if window is None else np.maximum(position - window + 1, 0)

    def _cut(self, metadata: AttentionMetadata, block_size: int) -> list[tuple[int, int]]:
        """Cut the decodes into groups that are neither too large nor padded too much."""
        lengths = metadata.context_lens[: metadata.num_decodes]
        lengths = lengths - self._first_attended(lengths - 1)
        bytes_per_token = self.spec.num_kv_heads * self.spec.head_dim * self.spec.dtype.itemsize
        bounds: list[tuple[int, int]] = []
        start, longest, padding = 0, 0, 0
        for row, length in enumerate(lengths.tolist()):
            padding += max(longest - length, 0)
            size = (row - start + 1) * max(longest, length) * bytes_per_token
            if row > start and (size > self._group_bytes or padding > self._group_padding):
                bounds.append((start, row))
                start, longest, padding = row, 0, 0
            longest = max(longest, length)
        if len(lengths):
            bounds.append((start, len(lengths)))
        return bounds

    def _decode_group(self, metadata: AttentionMetadata, block_size: int, start: int, stop: int) -> _DecodeGroup:
        context = metadata.context_lens[start:stop, None]
        first = self._first_attended(context - 1)
        first_block = first // block_size
        num_blocks = -(-context // block_size) - first_block
        columns = np.arange(num_blocks.max())
        # A shorter request's padding repeats its first block, which holds nothing but its own tokens.
        index = first_block + np.where(columns < num_blocks, columns, 0)
        blocks = np.take_along_axis(metadata.block_tables[start:stop], index, axis=1)
        length = len(columns) * block_size
        position = first_block * block_size + np.arange(length)
        attends = (position >= first) & (position < context)
        bias = torch.zeros(attends.shape, dtype=self.spec.dtype).masked_fill_(torch.from_numpy(~attends), float("-inf"))
        bias = bias.to(self.spec.device).repeat_interleave(self.spec.num_kv_heads, dim=0)
        return _DecodeGroup(start, stop, self._page_rows(blocks), length, bias[:, None])

    def _chunk(self, metadata: AttentionMetadata, block_size: int, request: int) -> _Chunk:
        start, stop = metadata.query_starts[request : request + 2].tolist()
        end = int(metadata.context_lens[request])
        computed = end - (stop - start)
        if computed == 0:
            return _Chunk(start, stop, 0, None, 0)
        first = int(self._first_attended(np.array(computed)))
        blocks = metadata.block_tables[request, first // block_size : -(-end // block_size)]
        return _Chunk(start, stop, computed - first, self._page_rows(blocks), first % block_size)


class _ReferenceStep:
    """One step of the `reference` backend."""

    def __init__(
        self,
        backend: ReferenceAttention,
        kv: KVTensors,
        write_rows: torch.Tensor,
        groups: list[_DecodeGroup],
        chunks: list[_Chunk],
    ) -> None:
        self._backend = backend
        self._spec = backend.spec
        self._kv = kv
        self._write_rows = write_rows
        self._groups = groups
        self._chunks = chunks

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See `AttentionStep.attend`."""
        heads, dim = self._spec.num_heads, self._spec.head_dim
        keys, values = self._kv.keys[layer], self._kv.values[layer]  # [num_blocks, kv_heads, block_size, head_dim]
        for pages, new in ((keys, key), (values, value)):
            rows = to_pages(new.reshape(-1, dim), pages.dtype)
            as_words(pages).view(-1, dim).index_copy_(0, self._write_rows, as_words(rows))

        page = self._kv.block_size * dim
        keys, values = keys.view(-1, page), values.view(-1, page)
        out = query.new_empty(len(query), heads, dim)
        for group in self._groups:
            self._attend_decodes(group, query, keys, values, out)
        for chunk in self._chunks:
            own = slice(chunk.start, chunk.stop)
            # SDPA's shapes: [1, heads, tokens, head_dim].
            chunk_query = query[own].transpose(0, 1)[None]
            if chunk.pages is None:
                chunk_keys, chunk_values = (self._as_kept(new[own]).transpose(0, 1)[None] for new in (key, value))
            else:
                chunk_keys, chunk_values = self._read_chunk(chunk, keys), self._read_chunk(chunk, values)
            self._attend_chunk(chunk, chunk_query, chunk_keys, chunk_values, out[own].transpose(0, 1)[None])
        return out.view(len(query), heads * dim)

    def _attend_decodes(
        self, group: _DecodeGroup, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor
    ) -> None:
        kv_heads, dim = self._spec.num_kv_heads, self._spec.head_dim
        batch = (group.stop - group.start) * kv_heads
        per_kv_head = self._spec.num_heads // kv_heads
        rows = query[group.start : group.stop].reshape(batch, per_kv_head, dim)
        gathered = self._backend.gather(keys, group.pages).view(batch, group.length, dim)
        scores = torch.baddbmm(group.bias, rows, gathered.transpose(1, 2), alpha=dim**-0.5)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)  # [batch, per_kv_head, length]
        gathered = self._backend.gather(values, group.pages).view(batch, group.length, dim)
        torch.bmm(weights, gathered, out=out[group.start : group.stop].view(batch, per_kv_head, dim))

    def _as_kept(self, new: torch.Tensor) -> torch.Tensor:
        """Keys or values as they come back from the cache: an answer must not depend on how a prompt was cut."""
        return to_pages(new, self._spec.page_dtype).to(self._spec.dtype)

    def _read_chunk(self, chunk: _Chunk, pages: torch.Tensor) -> torch.Tensor:
        """Context and chunk, `[1, kv_heads, context + rows, head_dim]`."""
        assert chunk.pages is not None
        kv_heads, dim = self._spec.num_kv_heads, self._spec.head_dim
        read = as_words(pages).index_select(0, chunk.pages).view(pages.dtype).view(1, kv_heads, -1, dim)
        read = read.to(self._spec.dtype)
        return read[:, :, chunk.skipped : chunk.skipped + chunk.context + chunk.stop - chunk.start]

    def _attend_chunk(
        self, chunk: _Chunk, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor
    ) -> None:
        num_rows, window = chunk.stop - chunk.start, self._spec.sliding_window
        if chunk.context == 0 and (window is None or num_rows <= window):
            out.copy_(functional.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True))
            return
        # In tiles, so that a row is not multiplied with the whole future of its chunk, and the mask stays small.
        for begin in range(0, num_rows, _TILE_ROWS):
            end = min(begin + _TILE_ROWS, num_rows)
            before = chunk.context + begin
            seen = slice(0 if window is None else max(before - window + 1, 0), chunk.context + end)
            out[:, :, begin:end] = functional.scaled_dot_product_attention(
                query[:, :, begin:end],
                keys[:, :, seen],
                values[:, :, seen],
                attn_mask=self._mask(end - begin, before, seen),
                enable_gqa=True,
            )

    def _mask(self, rows: int, before: int, seen: slice) -> torch.Tensor:
        bias = self._backend.tile_bias(rows, before)[:, seen]
        # The CUDA kernels want the mask's first element aligned, which a slice of a wider matrix may not be.
        return bias if self._spec.device.type == "cpu" else bias.contiguous()
