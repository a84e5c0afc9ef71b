"""Each compiled kernel computes what its plain form computes, and a row's result does not depend on its batch."""

from pathlib import Path

import pytest
import torch

from engine.build import load_executor
from engine.config import EngineConfig, ModelConfig
from engine.model.layers import gated_silu, rms_norm
from engine.model.native_operations import native_operations
from engine.model.operations import Operations, TorchOperations, operations_for
from engine.model.resolve import resolve_model
from engine.native import library
from engine.native.library import NoNativeKernels, compile_library, native_library, why_not_native

needs_compiler = pytest.mark.skipif(native_library() is None, reason="no C++ compiler")


def native() -> Operations:
    operations = native_operations()
    assert operations is not None
    return operations


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@needs_compiler
@pytest.mark.parametrize("rows", [0, 1, 5, 6, 7, 64, 300])
@pytest.mark.parametrize(("columns", "depth"), [(16, 8), (70, 33), (96, 576)])
def test_a_product_with_bias_and_residual_equals_the_plain_one(rows: int, columns: int, depth: int) -> None:
    weight, bias = draw(columns, depth, seed=1), draw(columns, seed=2)
    x, residual = draw(rows, depth, seed=3), draw(rows, columns, seed=4)
    plain, compiled = TorchOperations().linear(weight.clone()), native().linear(weight)
    for use_bias in (None, bias):
        plain.bias = compiled.bias = use_bias
        torch.testing.assert_close(compiled(x), torch.nn.functional.linear(x, weight, use_bias), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            compiled.add_to(residual, x), plain.add_to(residual.clone(), x), atol=1e-4, rtol=1e-4
        )


@needs_compiler
@pytest.mark.parametrize("rows", [0, 1, 9, 130])
@pytest.mark.parametrize("half", [8, 20, 64])
def test_a_gated_product_equals_the_plain_one(rows: int, half: int) -> None:
    weight, x = draw(2 * half, 48, seed=5), 3 * draw(rows, 48, seed=6)
    torch.testing.assert_close(native().gated(weight)(x), gated_silu(x @ weight.T), atol=1e-4, rtol=1e-4)


@needs_compiler
def test_the_gate_stays_finite_where_its_exponential_would_not() -> None:
    weight = torch.cat([torch.eye(8), torch.eye(8)])
    x = torch.tensor([[-1e4, -200.0, -90.0, -1.0, 0.0, 1.0, 90.0, 1e4]])
    torch.testing.assert_close(native().gated(weight)(x), torch.nn.functional.silu(x) * x, atol=1e-6, rtol=1e-6)


@needs_compiler
@pytest.mark.parametrize("size", [8, 24, 576, 579])
def test_the_norm_equals_the_plain_one(size: int) -> None:
    x, weight = 5 * draw(70, size, seed=7), draw(size, seed=8)
    torch.testing.assert_close(native().rms_norm(x, weight, 1e-5), rms_norm(x, weight, 1e-5), atol=1e-5, rtol=1e-5)


@needs_compiler
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("head_dim", [6, 64])
def test_queries_and_keys_are_turned_as_by_the_plain_form(normed: bool, head_dim: int) -> None:
    qkv, angles = draw(11, 9 + 2 * 3, head_dim, seed=9), draw(11, head_dim // 2, seed=10)
    cos_sin = torch.stack([angles.cos(), angles.sin()], dim=1)
    norms = (draw(head_dim, seed=11), draw(head_dim, seed=12)) if normed else None
    value = qkv[:, 12:].clone()
    expected = TorchOperations().turn(qkv.clone(), cos_sin, 9, 3, norms, 1e-6)
    for got, want in zip(native().turn(qkv, cos_sin, 9, 3, norms, 1e-6), expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(qkv[:, 12:], value, rtol=0, atol=0)


@needs_compiler
def test_a_row_has_the_same_bits_in_every_batch() -> None:
    operations = native()
    linear, gated = operations.linear(draw(80, 600, seed=13)), operations.gated(draw(64, 600, seed=14))
    x = draw(2000, 600, seed=15)
    for layer in (linear, gated):
        whole = layer(x)
        for rows in (slice(0, 1), slice(3, 9), slice(100, 164), slice(1990, 2000)):
            torch.testing.assert_close(layer(x[rows]), whole[rows], rtol=0, atol=0)


def test_plain_operations_serve_what_the_kernels_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert isinstance(operations_for(cpu, torch.bfloat16), TorchOperations)
    monkeypatch.setattr("engine.model.native_operations.native_library", lambda: None)
    assert isinstance(operations_for(cpu, torch.float32), TorchOperations)


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("no-such-compiler", "'no-such-compiler', which CXX names, was not found"),
        ("false", "false could not compile them: it did not say why"),
    ],
)
def test_without_a_working_compiler_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiler: str, said: str
) -> None:
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("TUNE_CACHE", str(tmp_path))
    library.native_library.cache_clear()
    try:
        assert native_library() is None
        assert said in (why_not_native() or "")
    finally:
        library.native_library.cache_clear()


def test_without_any_compiler_the_names_looked_for_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoNativeKernels, match=r"no C\+\+ compiler was found \(looked for c\+\+, g\+\+, clang\+\+"):
        compile_library(tmp_path)


def test_who_loads_a_model_is_told_that_the_kernels_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.native.library.why_not_native", lambda: "no compiler")
    model = ModelConfig(model="random:tiny-llama", max_model_len=64)
    said: list[str] = []
    load_executor(EngineConfig(model=model, device="cpu"), resolve_model(model.model), say=said.append)
    assert said[1:] == [
        "the CPU computes with torch's own operations, at about half the speed of compiled kernels: no compiler"
    ]


@needs_compiler
def test_the_library_is_compiled_once(tmp_path: Path) -> None:
    first = compile_library(tmp_path, ("-O0",))
    made = first.stat().st_mtime_ns
    assert compile_library(tmp_path, ("-O0",)) == first
    assert first.stat().st_mtime_ns == made
    assert [path.name for path in tmp_path.iterdir()] == [first.name]
