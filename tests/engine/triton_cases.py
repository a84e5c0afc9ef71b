"""What tests of the `triton` backend share: where it runs, random steps, and the reference's answer to them."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.attention.base import AttentionBackend, AttentionMetadata, AttentionSpec
from engine.attention.kv_tensors import KVTensors, to_pages
from engine.attention.reference import ReferenceAttention
from engine.attention.registry import make_attention

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")


def _teach_the_interpreter_bfloat16() -> None:
    """It keeps such numbers as bit patterns, which is right for all but products: those take them for integers."""
    from triton.runtime import interpreter

    plain_dot = interpreter.InterpreterBuilder.create_dot

    def widened(operand: Any) -> Any:
        if operand.dtype.scalar.name != "bf16":
            return operand
        numbers = (operand.data.astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(numbers, interpreter.tl.float32)

    def dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        return plain_dot(builder, widened(a), widened(b), *rest)

    interpreter.InterpreterBuilder.create_dot = dot


if HAS_TRITON and DEVICE.type == "cpu":
    _teach_the_interpreter_bfloat16()


def _exact_in(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    small = rows.abs() < torch.finfo(dtype).smallest_normal
    return to_pages(rows.masked_fill(small, 0), dtype).to(rows.dtype)


@dataclass(frozen=True)
class Case:
    """One step: requests as (tokens computed before, tokens of this step), in any order."""

    spec: AttentionSpec
    block_size: int
    shares: Sequence[tuple[int, int]]
    seed: int


def spec(
    heads: int,
    kv_heads: int,
    dim: int,
    window: int | None = None,
    dtype: Any = torch.float32,
    kv_dtype: Any = None,
) -> AttentionSpec:
    return AttentionSpec(heads, kv_heads, dim, window, dtype, DEVICE, kv_dtype)


class Step:
    """A random step over a cache that holds what came before it, and NaN wherever nothing was written."""

    def __init__(self, case: Case) -> None:
        self.case = case
        shape, size = case.spec, case.block_size
        shares = sorted(case.shares, key=lambda share: (share[1] > 1, -share[0] if share[1] == 1 else 0))
        rng = np.random.default_rng(case.seed)
        computed, counts = (np.array(column, dtype=np.int64) for column in zip(*shares, strict=True))
        ends = computed + counts
        blocks = -(-ends // size)
        self.num_blocks = int(blocks.sum()) + 3
        ids = rng.permutation(self.num_blocks)
        tables = np.zeros((len(shares), blocks.max()), dtype=np.int64)
        tables[np.arange(blocks.max()) < blocks[:, None]] = ids[: blocks.sum()]
        request = np.repeat(np.arange(len(shares)), counts)
        starts = np.concatenate([[0], counts.cumsum()])
        position = np.arange(len(request)) - starts[request] + computed[request]
        slots = tables[request, position // size] * size + position % size
        self.metadata = AttentionMetadata(
            num_decodes=int((counts == 1).sum()),
            query_starts=starts,
            context_lens=ends,
            block_tables=tables,
            slot_mapping=slots,
            opened_blocks=slots[position % size == 0] // size,
        )
        generator = torch.Generator().manual_seed(case.seed)
        heads = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        # Rows of one matrix, as a model's fused projection gives them.
        qkv = torch.randn(len(request), sum(heads), shape.head_dim, generator=generator)
        self.query, self.key, self.value = qkv.to(DEVICE, shape.dtype).split(heads, dim=1)
        if shape.kv_dtype is not None and DEVICE.type == "cpu":
            # Where a card rounds, the interpreter cuts off, and spoils small numbers of 8 bits: let there be neither.
            self.key, self.value = (_exact_in(rows, shape.kv_dtype) for rows in (self.key, self.value))
        self.pages = torch.full((2, self.num_blocks, shape.num_kv_heads, size, shape.head_dim), float("nan"))
        for row, before in enumerate(computed.tolist()):
            where = np.arange(before)
            block, offset = torch.from_numpy(tables[row, where // size]), torch.from_numpy(where % size)
            past = torch.randn(2, before, shape.num_kv_heads, shape.head_dim, generator=generator)
            self.pages[0, block, :, offset] = past[0]
            self.pages[1, block, :, offset] = past[1]

    def cache(self, pages: torch.Tensor, dtype: torch.dtype, device: torch.device) -> KVTensors:
        """One layer with the past in it, rounded as the case's type rounds it."""
        shape = self.case.spec
        page = (shape.num_kv_heads, self.case.block_size, shape.head_dim)
        kv = KVTensors(1, self.num_blocks, self.case.block_size, page, dtype, device)
        kv.keys[0], kv.values[0] = (part.to(shape.dtype).to(shape.page_dtype).to(device, dtype) for part in pages)
        return kv

    def run(self, backend: AttentionBackend) -> tuple[torch.Tensor, KVTensors]:
        """The backend's result, float32 on the CPU, and the cache it leaves behind."""
        kv = self.cache(self.pages, self.case.spec.page_dtype, DEVICE)
        out = backend.begin_step(self.metadata, kv).attend(0, self.query, self.key, self.value)
        return out.float().cpu(), kv

    def expected(self) -> torch.Tensor:
        """The reference's result, in float32 on the CPU from the same numbers, rounded as the cache rounds them."""
        cpu = torch.device("cpu")
        backend = ReferenceAttention(replace(self.case.spec, dtype=torch.float32, kv_dtype=None, device=cpu))
        # The reference relies on blocks that were wiped when they were opened.
        step = backend.begin_step(self.metadata, self.cache(self.pages.nan_to_num(), torch.float32, cpu))
        key, value = (to_pages(rows.cpu(), self.case.spec.page_dtype).float() for rows in (self.key, self.value))
        return step.attend(0, self.query.float().cpu(), key, value)


def assert_equals_reference(case: Case) -> None:
    step = Step(case)
    out, _ = step.run(make_attention("triton", case.spec))
    tolerance = TOLERANCE[case.spec.dtype]
    torch.testing.assert_close(out, step.expected(), atol=tolerance, rtol=tolerance)
