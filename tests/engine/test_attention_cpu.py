"""The `cpu` backend computes what the reference computes, and the same numbers however a sequence was cut."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.base import AttentionSpec
from engine.attention.cpu_attention import PANEL_TOKENS, CpuAttention
from engine.attention.kv_tensors import KVTensors, to_pages
from engine.attention.reference import ReferenceAttention
from engine.attention.registry import choose_attention, make_attention
from engine.errors import UserError
from engine.native.kernels import NativeKernels
from engine.native.library import NoNativeKernels, compile_library, native_library, open_library
from tests.engine.triton_cases import Case, Step

CPU = torch.device("cpu")
# Decodes, a fresh prompt, a chunk with context, a chunk of two, and one longer than a task.
MIXED = [(0, 1), (15, 1), (16, 1), (333, 1), (0, 37), (70, 9), (5, 2), (40, 150)]

pytestmark = pytest.mark.skipif(
    native_library() is None or torch.cuda.is_available(), reason="needs a C++ compiler, and cases on the CPU"
)


def spec(
    heads: int, kv_heads: int, dim: int, window: int | None = None, kv_dtype: torch.dtype | None = None
) -> AttentionSpec:
    return AttentionSpec(heads, kv_heads, dim, window, torch.float32, CPU, kv_dtype)


def past_in_panels(step: Step) -> KVTensors:
    """The step's cache with its keys laid out as the kernel reads them; NaN wherever nothing was written."""
    kv = step.cache(step.pages, step.case.spec.page_dtype, CPU)
    blocks, heads, size, dim = kv.keys[0].shape
    panels = kv.keys[0].view(blocks, heads, size // PANEL_TOKENS, PANEL_TOKENS, dim).transpose(-1, -2)
    kv.keys[0] = panels.reshape(kv.keys[0].shape).clone()
    return kv


def assert_equals_reference(case: Case, kernels: NativeKernels | None = None) -> None:
    step = Step(case)
    backend = make_attention("cpu", case.spec) if kernels is None else CpuAttention(case.spec, kernels)
    out = backend.begin_step(step.metadata, past_in_panels(step)).attend(0, step.query, step.key, step.value)
    torch.testing.assert_close(out, step.expected(), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block_size"),
    [(2, 2, 64, 16), (9, 3, 64, 32), (7, 1, 128, 16), (16, 1, 96, 256), (6, 2, 16, 48), (100, 1, 32, 16)],
)
@pytest.mark.parametrize("window", [None, 1, 40])
def test_a_mixed_step_equals_the_reference(
    heads: int, kv_heads: int, dim: int, block_size: int, window: int | None
) -> None:
    assert_equals_reference(Case(spec(heads, kv_heads, dim, window), block_size, MIXED, seed=1))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    group=st.integers(1, 16),
    kv_heads=st.sampled_from([1, 2, 3]),
    dim=st.sampled_from([16, 64, 80, 128]),
    block_size=st.sampled_from([16, 32, 128]),
    window=st.sampled_from([None, None, 50]),
    shares=st.lists(st.tuples(st.integers(0, 200), st.one_of(st.just(1), st.integers(1, 120))), min_size=1, max_size=5),
    kv_dtype=st.sampled_from([None, torch.float16, torch.bfloat16]),
    seed=st.integers(0, 2**31),
)
def test_any_step_equals_the_reference(
    group: int,
    kv_heads: int,
    dim: int,
    block_size: int,
    window: int | None,
    shares: list[tuple[int, int]],
    kv_dtype: torch.dtype | None,
    seed: int,
) -> None:
    assert_equals_reference(Case(spec(group * kv_heads, kv_heads, dim, window, kv_dtype), block_size, shares, seed))


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_every_width_of_registers_computes_the_same(lanes: int, tmp_path: Path) -> None:
    """Compilers take wider registers apart where the processor has none."""
    flags = (f"-DLANES={lanes}", f"-DTILE_ROWS={12 if lanes == 16 else 6}", "-O1", "-Wno-psabi")
    try:
        kernels = NativeKernels(open_library(compile_library(tmp_path, flags)))
    except NoNativeKernels as error:
        pytest.skip(str(error))
    assert kernels.lanes == lanes
    for kv_dtype in (None, torch.float16, torch.bfloat16):
        assert_equals_reference(Case(spec(6, 2, 32, None, kv_dtype), 16, MIXED, seed=2), kernels)
    assert_pages_hold_what_torch_rounds_to(kernels)
    weight, x = torch.randn(75, 40), torch.randn(17, 40)
    product = kernels.linear(x, kernels.pack(weight), 75)
    torch.testing.assert_close(product, x @ weight.T, atol=1e-4, rtol=1e-4)
    gated = kernels.linear_gated(x, kernels.pack_gated(weight[:74]), 37)
    gate, up = x @ weight[:37].T, x @ weight[37:74].T
    torch.testing.assert_close(gated, gate * gate.sigmoid() * up, atol=1e-4, rtol=1e-4)


def assert_pages_hold_what_torch_rounds_to(kernels: NativeKernels) -> None:
    """Every number of 16 bits, all that lie halfway between two, some that are too large, and random ones."""
    for dtype in (torch.float16, torch.bfloat16):
        known = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype).float()
        known = known[known.isfinite()]
        larger = torch.nextafter(known.to(dtype), torch.tensor(torch.inf, dtype=dtype)).float()
        halfway = (known / 2 + larger / 2)[larger.isfinite()]
        generator = torch.Generator().manual_seed(5)
        random = torch.randn(4096, generator=generator) * 2.0 ** torch.randint(-30, 17, (4096,), generator=generator)
        numbers = torch.cat([known, halfway, random, torch.tensor([65519.0, 65520.0, 1e30, -1e30])])
        rows = torch.nn.functional.pad(numbers, (0, -len(numbers) % 32)).view(-1, 1, 32)
        slots = np.arange(len(rows))
        pages = torch.zeros(2, -(-len(rows) // 16), 1, 16, 32, dtype=dtype)
        kernels.write_pages(rows, rows, pages[0], pages[1], slots, 16)
        values = pages[1].view(-1, 1, 32)[: len(rows)]
        torch.testing.assert_close(values, to_pages(rows, dtype), rtol=0, atol=0)
        keys = pages[0].view(-1, 1, 1, 32, 16).transpose(-1, -2).reshape(-1, 1, 32)[: len(rows)]
        torch.testing.assert_close(keys, values, rtol=0, atol=0)


def test_pages_hold_what_torch_rounds_to() -> None:
    assert_pages_hold_what_torch_rounds_to(NativeKernels(native_library()))  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [None, 50])
def test_a_row_has_the_same_bits_in_a_chunk_as_alone(window: int | None) -> None:
    whole = Step(Case(spec(6, 2, 64, window), 16, [(60, 90)], seed=3))
    backend = CpuAttention(whole.case.spec, NativeKernels(native_library()))  # type: ignore[arg-type]
    kv = past_in_panels(whole)
    chunk = backend.begin_step(whole.metadata, kv).attend(0, whole.query, whole.key, whole.value)
    kernels = backend.kernels
    for row in (0, 1, 47, 89):
        alone = kernels.attend(
            whole.query[row : row + 1],
            kv.keys[0],
            kv.values[0],
            whole.metadata.block_tables,
            np.array([[0, 0, 1, 60 + row]]),
            kv_heads=2,
            block_size=16,
            window=window,
        )
        torch.testing.assert_close(alone[0], chunk[row], rtol=0, atol=0)


@pytest.mark.parametrize(("dim", "block_size"), [(64, 8), (64, 24), (24, 16)])
def test_blocks_and_heads_that_no_panels_fill_are_left_to_the_reference(dim: int, block_size: int) -> None:
    step = Step(Case(spec(4, 2, dim), block_size, MIXED, seed=4))
    kv = step.cache(step.pages.nan_to_num(), torch.float32, CPU)
    out = make_attention("cpu", step.case.spec).begin_step(step.metadata, kv)
    torch.testing.assert_close(out.attend(0, step.query, step.key, step.value), step.expected(), atol=0, rtol=0)


def test_auto_takes_it_for_float32_alone() -> None:
    assert choose_attention("auto", CPU, torch.float32) == "cpu"
    assert choose_attention("auto", CPU, torch.bfloat16) == "reference"
    assert choose_attention("auto", CPU, torch.float32, torch.bfloat16) == "cpu"
    assert choose_attention("auto", CPU, torch.float32, torch.float8_e4m3fn) == "reference"
    with pytest.raises(UserError, match=r"'cpu' is not possible with a KV cache in torch.float8_e4m3fn"):
        make_attention("cpu", spec(2, 1, 64, None, torch.float8_e4m3fn))
    with pytest.raises(UserError, match=r"'cpu' is not possible for torch.bfloat16 on cpu: it computes float32"):
        make_attention("cpu", AttentionSpec(2, 1, 64, None, torch.bfloat16, CPU))
    assert isinstance(make_attention("reference", spec(2, 1, 64)), ReferenceAttention)
