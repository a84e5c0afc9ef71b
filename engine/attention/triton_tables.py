"""What the host works out about a step for the `triton` backend, and how it travels: one table of integers.

The host knows every context length, so it cuts the work into items of similar size instead of leaving it to the
device to find out who does what. Two kinds of items, alike in form:

- a *part*: one token with some of its context. A long context is cut into several parts, so that few requests fill
  the card, and a few long ones among many do not keep everyone waiting; the parts are joined afterwards;
- a *tile*: neighbouring tokens of one chunk with all that they attend to, those with the most first.

A table has the sections slots, parts, tiles, joins and page ids, in that order, each at a multiple of 32 integers:
addresses are part of what a kernel is compiled for. For a captured graph the sections have the sizes of its bounds,
and what a step does not use is empty.
"""

from dataclasses import dataclass

import numpy as np
import torch

from engine.attention.base import AttentionMetadata, StepBounds

# An item: first row, tokens (0: nothing to do), position of the first token, where its page ids begin,
# first key (at a whole tile), end of the keys, part (-1: not split), unused.
ITEM_FIELDS = 8
# A row to join: row, first part, parts (0: nothing to do), unused.
JOIN_FIELDS = 4
# Splitting finer costs more in joining than it gains.
MIN_PART_TOKENS = 128
_ALIGNMENT = 32
_EMPTY_SLOT = -1


@dataclass(frozen=True, slots=True)
class WorkShape:
    """How a step is cut.

    Attributes:
        part_keys: keys per round of the loop over a part; parts end at multiples of it.
        tile_tokens: tokens of a chunk per tile.
        tile_keys: as `part_keys`, of tiles.
        extra_parts: how many parts a step may have beyond one per row.
        sliding_window: as in `AttentionSpec`.
    """

    part_keys: int
    tile_tokens: int
    tile_keys: int
    extra_parts: int
    sliding_window: int | None


@dataclass(frozen=True, slots=True)
class StepWork:
    """One step, cut. All int32.

    Attributes:
        slots: `[tokens]`.
        parts, tiles: `[items, ITEM_FIELDS]`.
        joins: `[rows, JOIN_FIELDS]`, the rows that have more than one part.
        page_ids: the block tables of all requests, one after another, as far as they are in use.
    """

    slots: np.ndarray
    parts: np.ndarray
    tiles: np.ndarray
    joins: np.ndarray
    page_ids: np.ndarray

    @classmethod
    def nothing(cls) -> "StepWork":
        """A step of no tokens."""
        items, none = np.zeros((0, ITEM_FIELDS), dtype=np.int32), np.zeros(0, dtype=np.int32)
        return cls(none, items, items, np.zeros((0, JOIN_FIELDS), dtype=np.int32), none)


@dataclass(frozen=True, slots=True)
class TableLayout:
    """How many entries each section of a table has; the grids of the kernels follow from it alone."""

    num_slots: int
    num_parts: int
    num_tiles: int
    num_joins: int
    num_pages: int

    @classmethod
    def exactly(cls, work: StepWork) -> "TableLayout":
        """Room for one step and no more."""
        return cls(len(work.slots), len(work.parts), len(work.tiles), len(work.joins), len(work.page_ids))

    @classmethod
    def up_to(cls, bounds: StepBounds, shape: WorkShape) -> "TableLayout":
        """Room for every step within the bounds.

        A padding row is a part as well, an empty one. A split row has at least one part more than one per row, so
        there are no more joins than extra parts. Each chunk may leave one tile that is not full.
        """
        tiles = bounds.num_tokens // shape.tile_tokens + bounds.num_chunks if bounds.num_chunks else 0
        return cls(
            num_slots=bounds.num_tokens,
            num_parts=bounds.num_tokens + shape.extra_parts,
            num_tiles=tiles,
            num_joins=min(shape.extra_parts, bounds.num_tokens),
            num_pages=bounds.num_pages,
        )

    @property
    def starts(self) -> list[int]:
        """First integer of each section, then the size of the table."""
        sizes = (
            self.num_slots,
            self.num_parts * ITEM_FIELDS,
            self.num_tiles * ITEM_FIELDS,
            self.num_joins * JOIN_FIELDS,
            self.num_pages,
        )
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
        return starts

    def pack(self, work: StepWork, *, pinned: bool) -> torch.Tensor:
        """The table of a step that fits, int32 on the host, cut off behind its last page id.

        Rows that the step does not have write to no slot and get a part without context, which gives zeros.
        """
        _, parts, tiles, joins, pages, _ = self.starts
        # Pinned memory comes from torch's pool, which hands it out again only when the copy from it is done.
        table = torch.empty(pages + len(work.page_ids), dtype=torch.int32, pin_memory=pinned)
        flat = table.numpy()
        flat[:parts] = _EMPTY_SLOT
        flat[parts:pages] = 0
        flat[: len(work.slots)] = work.slots
        items = flat[parts:tiles][: self.num_parts * ITEM_FIELDS].reshape(-1, ITEM_FIELDS)
        items[: len(work.parts)] = work.parts
        padding = items[len(work.parts) :][: self.num_slots - len(work.slots)]
        padding[:, 0] = np.arange(len(work.slots), self.num_slots)
        padding[:, 1] = 1
        padding[:, 6] = -1
        flat[tiles : tiles + work.tiles.size] = work.tiles.reshape(-1)
        flat[joins : joins + work.joins.size] = work.joins.reshape(-1)
        flat[pages:] = work.page_ids
        return table


def cut_step(metadata: AttentionMetadata, block_size: int, shape: WorkShape) -> StepWork:
    """Cut a step into parts and tiles."""
    num_blocks = -(-metadata.context_lens // block_size)
    tables = metadata.block_tables
    used = np.arange(tables.shape[1]) < num_blocks[:, None]
    first_pages = num_blocks.cumsum() - num_blocks
    parts, joins = _cut_decodes(metadata, first_pages, shape)
    return StepWork(
        slots=metadata.slot_mapping.astype(np.int32),
        parts=parts,
        tiles=_cut_chunks(metadata, first_pages, shape),
        joins=joins,
        page_ids=tables[used].astype(np.int32),
    )


def _cut_decodes(
    metadata: AttentionMetadata, first_pages: np.ndarray, shape: WorkShape
) -> tuple[np.ndarray, np.ndarray]:
    num = metadata.num_decodes
    context = metadata.context_lens[:num]
    keys = shape.part_keys
    first = _first_attended(context - 1, shape.sliding_window) // keys  # in rounds of `keys`, as all below
    rounds = -(-context // keys) - first
    # No more than one part per row and `extra_parts`: ceil(r / share) - 1 is less than r / share.
    share = max(-(-MIN_PART_TOKENS // keys), -(-int(rounds.sum()) // shape.extra_parts))
    counts = np.maximum(-(-rounds // share), 1)
    starts = counts.cumsum() - counts
    row = np.repeat(np.arange(num), counts)
    index = np.arange(len(row)) - starts[row]

    items = np.zeros((len(row), ITEM_FIELDS), dtype=np.int32)
    items[:, 0] = row
    items[:, 1] = 1
    items[:, 2] = context[row] - 1
    items[:, 3] = first_pages[row]
    items[:, 4] = (first[row] + rounds[row] * index // counts[row]) * keys
    items[:, 5] = np.minimum((first[row] + rounds[row] * (index + 1) // counts[row]) * keys, context[row])
    split = counts[row] > 1
    items[:, 6] = np.where(split, split.cumsum() - 1, -1)

    rows = np.flatnonzero(counts > 1)
    joins = np.zeros((len(rows), JOIN_FIELDS), dtype=np.int32)
    joins[:, 0] = rows
    joins[:, 1] = items[starts[rows], 6]
    joins[:, 2] = counts[rows]
    return items, joins


def _cut_chunks(metadata: AttentionMetadata, first_pages: np.ndarray, shape: WorkShape) -> np.ndarray:
    num = metadata.num_decodes
    starts = metadata.query_starts[num:-1]
    lengths = metadata.query_starts[num + 1 :] - starts
    computed = metadata.context_lens[num:] - lengths
    counts = -(-lengths // shape.tile_tokens)
    chunk = np.repeat(np.arange(len(counts)), counts)
    offset = (np.arange(len(chunk)) - (counts.cumsum() - counts)[chunk]) * shape.tile_tokens
    tokens = np.minimum(lengths[chunk] - offset, shape.tile_tokens)
    position = computed[chunk] + offset

    items = np.zeros((len(chunk), ITEM_FIELDS), dtype=np.int32)
    items[:, 0] = starts[chunk] + offset
    items[:, 1] = tokens
    items[:, 2] = position
    items[:, 3] = first_pages[num + chunk]
    items[:, 4] = _first_attended(position, shape.sliding_window) // shape.tile_keys * shape.tile_keys
    items[:, 5] = position + tokens
    items[:, 6] = -1
    # The long ones first: whatever is left at the end is then short, and no part of the card waits long.
    return items[np.argsort(items[:, 4] - items[:, 5], kind="stable")]


def _first_attended(position: np.ndarray, window: int | None) -> np.ndarray:
    return np.zeros_like(position) if window is None else np.maximum(position - window + 1, 0)
