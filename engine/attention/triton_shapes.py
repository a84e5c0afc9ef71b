"""Tile shapes of the `triton` backend: how much one program computes at a time."""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.attention.base import AttentionSpec

# The matrix units take nothing narrower.
_MIN_ROWS = _MIN_DIM = 16
_MIN_KEYS, _MAX_KEYS = 16, 128

# (bytes of a tile of keys, warps, stages of the load pipeline). By bytes, since shared memory is what limits a tile,
# whatever the head size and the number type. A card with less of it refuses the larger ones.
#
# Page ids are loaded before the keys that they lead to, so keys and values are one tile ahead with 3 or 4 stages, and
# two with 5.
_DECODE = (
    (8192, 4, 3),
    (8192, 4, 5),
    (16384, 2, 3),
    (16384, 4, 3),
    (16384, 4, 5),
    (32768, 4, 3),
    (32768, 8, 3),
)
# (rows, then the same).
_PREFILL = (
    (64, 8192, 4, 3),
    (64, 16384, 4, 2),
    (64, 16384, 4, 3),
    (128, 16384, 8, 3),
    (128, 16384, 8, 5),
    (128, 32768, 8, 2),
)
# Small ones, for when none is tried; the rows are those of 16-bit numbers.
_FIXED_DECODE = (8192, 4, 3)
_FIXED_PREFILL = (64, 8192, 4, 3)


@dataclass(frozen=True, slots=True)
class TileShape:
    """What one program computes at a time.

    Attributes:
        rows: query rows (tokens times the heads that share a KV head), a power of two.
        keys: keys per round, a power of two.
        num_warps, num_stages: of the compiled kernel.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class TileShapes:
    """The shapes for single tokens and for chunks."""

    decode: TileShape
    prefill: TileShape


def fixed_shapes(spec: AttentionSpec) -> TileShapes:
    """Shapes that every card can run."""
    rows, *prefill = _FIXED_PREFILL
    return TileShapes(
        _decode_shape(spec, *_FIXED_DECODE), _prefill_shape(spec, rows * 2 // spec.dtype.itemsize, *prefill)
    )


def decode_candidates(spec: AttentionSpec) -> Iterable[TileShape]:
    """Shapes worth trying for single tokens, each once."""
    return dict.fromkeys(_decode_shape(spec, *candidate) for candidate in _DECODE)


def prefill_candidates(spec: AttentionSpec) -> Iterable[TileShape]:
    """Shapes worth trying for chunks, each once."""
    return dict.fromkeys(_prefill_shape(spec, *candidate) for candidate in _PREFILL)


def padded(size: int) -> int:
    """The next power of two, which is what a tile's sides must be."""
    return 1 << (size - 1).bit_length()


def padded_dim(head_dim: int) -> int:
    """The side of a tile that holds heads."""
    return max(padded(head_dim), _MIN_DIM)


def _decode_shape(spec: AttentionSpec, tile_bytes: int, num_warps: int, num_stages: int) -> TileShape:
    rows = max(_MIN_ROWS, padded(spec.num_heads // spec.num_kv_heads))
    return TileShape(rows, _keys(spec, tile_bytes), num_warps, num_stages)


def _prefill_shape(spec: AttentionSpec, rows: int, tile_bytes: int, num_warps: int, num_stages: int) -> TileShape:
    rows = max(rows, padded(spec.num_heads // spec.num_kv_heads))
    return TileShape(rows, _keys(spec, tile_bytes), num_warps, num_stages)


def _keys(spec: AttentionSpec, tile_bytes: int) -> int:
    keys = tile_bytes // (padded_dim(spec.head_dim) * spec.dtype.itemsize)
    return min(max(keys, _MIN_KEYS), _MAX_KEYS)
