"""The reference backend computes what a dense softmax over each request's own tokens computes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention import reference
from engine.attention.base import AttentionMetadata, AttentionSpec
from engine.attention.kv_tensors import KVTensors
from engine.attention.reference import ReferenceAttention
from engine.attention.registry import make_attention
from engine.errors import UserError

CPU = torch.device("cpu")


def spec(num_heads: int, num_kv_heads: int, head_dim: int, window: int | None = None) -> AttentionSpec:
    return AttentionSpec(num_heads, num_kv_heads, head_dim, window, torch.float32, CPU)


class PagedRequests:
    """Requests with random queries, keys and values, and pages full of NaN wherever nothing was written."""

    def __init__(self, shape: AttentionSpec, block_size: int, shares: list[tuple[int, int]], seed: int) -> None:
        """`shares` are (tokens computed before, tokens of this step)."""
        self.shape, self.block_size = shape, block_size
        self.shares = sorted(shares, key=lambda s: (s[1] > 1, -s[0] if s[1] == 1 else 0))
        generator = torch.Generator().manual_seed(seed)
        rng = np.random.default_rng(seed)
        totals = [computed + new for computed, new in self.shares]
        blocks = [-(-total // block_size) for total in totals]
        ids = rng.permutation(sum(blocks) + 3)
        self.tables = np.zeros((len(totals), max(blocks)), dtype=np.int64)
        for row, count in enumerate(blocks):
            self.tables[row, :count], ids = ids[:count], ids[count:]
        self.num_blocks = sum(blocks) + 3

        def draw(total: int, heads: int) -> torch.Tensor:
            return torch.randn(total, heads, shape.head_dim, generator=generator)

        self.queries = [draw(total, shape.num_heads) for total in totals]
        self.keys = [draw(total, shape.num_kv_heads) for total in totals]
        self.values = [draw(total, shape.num_kv_heads) for total in totals]

    def metadata(self, shares: list[tuple[int, int]]) -> AttentionMetadata:
        computed, new = (np.array(column, dtype=np.int64) for column in zip(*shares, strict=True))
        positions = [np.arange(start, start + count) for start, count in shares]
        blocks = np.concatenate([self.tables[row, p // self.block_size] for row, p in enumerate(positions)])
        offsets = np.concatenate(positions) % self.block_size
        return AttentionMetadata(
            num_decodes=int((new == 1).sum()),
            query_starts=np.concatenate([[0], new.cumsum()]),
            context_lens=computed + new,
            block_tables=self.tables,
            slot_mapping=blocks * self.block_size + offsets,
            opened_blocks=blocks[offsets == 0],
        )

    def run(self, backend: ReferenceAttention) -> torch.Tensor:
        """Fill the cache with the computed tokens, then run the step itself: `[tokens, heads * head_dim]`."""
        kv = KVTensors(1, self.num_blocks, self.block_size, backend.page_shape(self.block_size), torch.float32, CPU)
        kv.keys.fill_(float("nan"))
        kv.values.fill_(float("nan"))
        for row, (computed, _) in enumerate(self.shares):
            if computed:
                self._step(backend, kv, [(0, computed if r == row else 0) for r in range(len(self.shares))], row)
        meta = self.metadata(self.shares)
        query, key, value = (
            torch.cat([t[c : c + n] for t, (c, n) in zip(tensors, self.shares, strict=True)])
            for tensors in (self.queries, self.keys, self.values)
        )
        return backend.begin_step(meta, kv).attend(0, query, key, value)

    def _step(self, backend: ReferenceAttention, kv: KVTensors, shares: list[tuple[int, int]], row: int) -> None:
        computed = shares[row][1]
        positions = np.arange(computed)
        blocks = self.tables[row, positions // self.block_size]
        meta = AttentionMetadata(
            num_decodes=int(computed == 1),
            query_starts=np.array([0, computed]),
            context_lens=np.array([computed]),
            block_tables=self.tables[row : row + 1],
            slot_mapping=blocks * self.block_size + positions % self.block_size,
            opened_blocks=blocks[positions % self.block_size == 0],
        )
        step = backend.begin_step(meta, kv)
        step.attend(0, self.queries[row][:computed], self.keys[row][:computed], self.values[row][:computed])

    def dense(self) -> torch.Tensor:
        rows = []
        for row, (computed, new) in enumerate(self.shares):
            rows.append(dense_attention(self.shape, self.queries[row], self.keys[row], self.values[row])[computed:])
            assert len(rows[-1]) == new
        return torch.cat(rows).flatten(1)


def dense_attention(shape: AttentionSpec, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Softmax attention of one whole sequence, written out: `[tokens, heads, head_dim]`."""
    per_kv_head = shape.num_heads // shape.num_kv_heads
    key, value = key.repeat_interleave(per_kv_head, 1), value.repeat_interleave(per_kv_head, 1)
    scores = torch.einsum("qhd,khd->hqk", query, key) * shape.head_dim**-0.5
    position = torch.arange(len(query))
    distance = position[:, None] - position
    hidden = distance < 0
    if shape.sliding_window is not None:
        hidden |= distance >= shape.sliding_window
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    heads=st.sampled_from([(1, 1), (4, 4), (9, 3), (8, 2), (6, 1)]),
    head_dim=st.sampled_from([8, 16, 64, 80]),
    block_size=st.sampled_from([1, 4, 16, 32]),
    window=st.sampled_from([None, None, 1, 7, 40]),
    shares=st.lists(st.tuples(st.integers(0, 90), st.one_of(st.just(1), st.integers(1, 70))), min_size=1, max_size=7),
    seed=st.integers(0, 2**31),
)
def test_any_mixture_of_decodes_and_chunks_equals_dense_softmax(
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    window: int | None,
    shares: list[tuple[int, int]],
    seed: int,
) -> None:
    shape = spec(*heads, head_dim, window)
    requests = PagedRequests(shape, block_size, shares, seed)
    torch.testing.assert_close(requests.run(ReferenceAttention(shape)), requests.dense(), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("window", [None, 33])
def test_groups_and_tiles_do_not_show_in_the_result(monkeypatch: pytest.MonkeyPatch, window: int | None) -> None:
    shape = spec(4, 2, 16, window)
    requests = PagedRequests(shape, 4, [(c, 1) for c in (0, 3, 9, 30, 31, 90, 91, 200)] + [(50, 60), (0, 75)], seed=5)
    plain = requests.run(ReferenceAttention(shape))
    monkeypatch.setattr(reference, "_GROUP_BYTES", {"cpu": 4096})
    monkeypatch.setattr(reference, "_GROUP_PADDING_TOKENS", {"cpu": 8})
    monkeypatch.setattr(reference, "_TILE_ROWS", 16)
    torch.testing.assert_close(requests.run(ReferenceAttention(shape)), plain, atol=2e-5, rtol=2e-5)


def test_decodes_are_cut_where_padding_or_gathered_bytes_grow_too_large() -> None:
    shape = spec(4, 2, 16)
    backend = ReferenceAttention(shape)
    lengths = np.array([4000, 3990, 100, 99, 98, 1])
    meta = AttentionMetadata(
        6, np.arange(7), lengths, np.zeros((6, 1000), np.int64), np.zeros(6, np.int64), lengths[:0]
    )
    assert backend._cut(meta, 4) == [(0, 2), (2, 6)]


def test_a_former_owners_nan_does_not_reach_a_neighbour() -> None:
    shape = spec(2, 1, 8)
    backend = ReferenceAttention(shape)
    kv = KVTensors(1, 2, 4, backend.page_shape(4), torch.float32, CPU)
    kv.keys.fill_(float("nan"))
    kv.values.fill_(float("inf"))
    meta = AttentionMetadata(1, np.array([0, 1]), np.array([1]), np.array([[1]]), np.array([4]), np.array([1]))
    out = backend.begin_step(meta, kv).attend(0, torch.ones(1, 2, 8), torch.ones(1, 1, 8), torch.ones(1, 1, 8))
    torch.testing.assert_close(out, torch.ones(1, 16))


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="'flash' does not exist: choose one of auto, reference, cpu, triton"):
        make_attention("flash", spec(1, 1, 8))
