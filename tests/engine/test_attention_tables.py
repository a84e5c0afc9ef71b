"""How a step is cut for the `triton` backend: everything once, in pieces of similar size, within its bounds."""

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.base import AttentionMetadata, AttentionSpec, StepBounds
from engine.attention.triton_shapes import TileShape, decode_candidates, fixed_shapes, prefill_candidates
from engine.attention.triton_tables import TableLayout, WorkShape, cut_step

BLOCK_SIZE = 16


def step(decodes: list[int], chunks: list[tuple[int, int]]) -> AttentionMetadata:
    """A step of decodes, by context, and chunks, by (tokens before, tokens)."""
    counts = np.array([1] * len(decodes) + [count for _, count in chunks], dtype=np.int64)
    ends = np.array(decodes + [before + count for before, count in chunks], dtype=np.int64)
    tables = np.arange(len(ends) * 200, dtype=np.int64).reshape(len(ends), 200)
    starts = np.concatenate([[0], counts.cumsum()])
    return AttentionMetadata(len(decodes), starts, ends, tables, np.arange(starts[-1]), np.zeros(0, dtype=np.int64))


work_shapes = st.builds(
    WorkShape,
    part_keys=st.sampled_from([16, 64, 128]),
    tile_tokens=st.integers(1, 64),
    tile_keys=st.sampled_from([16, 64]),
    extra_parts=st.integers(1, 80),
    sliding_window=st.sampled_from([None, 1, 100, 1000]),
)
decode_lists = st.lists(st.integers(1, 3000), max_size=12)
chunk_lists = st.lists(st.tuples(st.integers(0, 2000), st.integers(2, 300)), max_size=5)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(shape=work_shapes, decodes=decode_lists, chunks=chunk_lists)
def test_every_token_sees_every_key_once(shape: WorkShape, decodes: list[int], chunks: list[tuple[int, int]]) -> None:
    metadata = step(decodes, chunks)
    work = cut_step(metadata, BLOCK_SIZE, shape)
    request_of_row = np.repeat(np.arange(len(metadata.context_lens)), np.diff(metadata.query_starts))
    seen: dict[int, list[tuple[int, int]]] = {}
    for items, keys in ((work.parts, shape.part_keys), (work.tiles, shape.tile_keys)):
        for row, tokens, position, page, begin, end, _, _ in items.tolist():
            request = request_of_row[row]
            assert begin % keys == 0
            assert end <= metadata.context_lens[request]
            first_block = work.page_ids[page] if len(work.page_ids) else 0
            assert first_block == metadata.block_tables[request, 0]
            for offset in range(tokens):
                where = metadata.context_lens[request] - metadata.query_starts[request + 1] + row + offset
                assert position + offset == where
                seen.setdefault(row + offset, []).append((begin, end))
    assert sorted(seen) == list(range(len(metadata.slot_mapping)))
    for row, ranges in seen.items():
        request = request_of_row[row]
        position = metadata.context_lens[request] - metadata.query_starts[request + 1] + row
        first = 0 if shape.sliding_window is None else max(position - shape.sliding_window + 1, 0)
        ranges.sort()
        assert ranges[0][0] <= first
        assert ranges[-1][1] > position
        assert all(left[1] == right[0] and left[0] < left[1] for left, right in pairwise(ranges))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(shape=work_shapes, decodes=decode_lists, chunks=chunk_lists, spare=st.integers(0, 9))
def test_a_step_within_its_bounds_fits_the_table_and_no_part_is_lost(
    shape: WorkShape, decodes: list[int], chunks: list[tuple[int, int]], spare: int
) -> None:
    metadata = step(decodes, chunks)
    work = cut_step(metadata, BLOCK_SIZE, shape)
    bounds = StepBounds(len(metadata.slot_mapping) + spare, len(chunks), len(work.page_ids))
    layout = TableLayout.up_to(bounds, shape)
    assert len(work.parts) + spare <= layout.num_parts
    assert len(work.tiles) <= layout.num_tiles
    assert len(work.joins) <= layout.num_joins
    split = work.parts[work.parts[:, 6] >= 0]
    assert split[:, 6].tolist() == list(range(len(split)))
    assert len(split) <= 2 * shape.extra_parts
    for row, first, count, _ in work.joins.tolist():
        assert split[first : first + count, 0].tolist() == [row] * count
        assert count > 1
    table = layout.pack(work, pinned=False).numpy()
    _, parts, _, _, pages, size = layout.starts
    assert len(table) <= size
    assert table[: len(work.slots)].tolist() == work.slots.tolist()
    assert (table[len(work.slots) : parts] == -1).all()
    assert table[pages:].tolist() == work.page_ids.tolist()


def test_a_long_context_beside_short_ones_is_the_one_that_is_split() -> None:
    shape = WorkShape(part_keys=64, tile_tokens=16, tile_keys=64, extra_parts=32, sliding_window=None)
    work = cut_step(step([3000, *[100] * 30], []), BLOCK_SIZE, shape)
    assert work.joins.tolist() == [[0, 0, 12, 0]]
    longest = (work.parts[:, 5] - work.parts[:, 4]).max()
    assert longest <= 256


def test_tiles_with_the_most_keys_come_first() -> None:
    shape = WorkShape(part_keys=64, tile_tokens=16, tile_keys=64, extra_parts=32, sliding_window=None)
    tiles = cut_step(step([], [(0, 50), (500, 20)]), BLOCK_SIZE, shape).tiles
    assert (tiles[:, 5] - tiles[:, 4]).tolist() == [520, 516, 50, 48, 32, 16]


def test_tile_shapes_suit_the_model_whatever_its_size() -> None:
    for heads, kv_heads, dim in ((32, 32, 64), (28, 4, 128), (64, 1, 96), (71, 1, 64), (8, 4, 256), (4, 2, 8)):
        for dtype in (torch.bfloat16, torch.float32):
            spec = AttentionSpec(heads, kv_heads, dim, None, dtype, torch.device("cuda"))
            fixed = fixed_shapes(spec)
            shapes: list[TileShape] = [*decode_candidates(spec), *prefill_candidates(spec), fixed.decode, fixed.prefill]
            for shape in shapes:
                assert shape.rows >= max(16, heads // kv_heads)
                assert 16 <= shape.keys <= 128
                assert shape.rows & (shape.rows - 1) == shape.keys & (shape.keys - 1) == 0
