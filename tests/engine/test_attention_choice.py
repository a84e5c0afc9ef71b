"""Which attention backend is used where, and what is said where one cannot be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.attention.base import AttentionSpec, GraphAttentionBackend
from engine.attention.reference import ReferenceAttention
from engine.attention.registry import choose_attention, make_attention
from engine.attention.timing import time_decode, time_prefill
from engine.errors import UserError
from tests.engine.triton_cases import needs_triton, spec

ROOT = Path(__file__).parents[2]


def run_without_interpreter(*arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )


@needs_triton
def test_auto_is_triton_on_a_card_and_on_a_cpu_what_was_compiled_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_attention("auto", torch.device("cuda", 1)) == "triton"
    monkeypatch.setattr("engine.attention.registry.native_library", lambda: object())
    assert choose_attention("auto", torch.device("cpu")) == "cpu"
    monkeypatch.setattr("engine.attention.registry.native_library", lambda: None)
    assert choose_attention("auto", torch.device("cpu")) == "reference"
    assert choose_attention("reference", torch.device("cuda")) == "reference"


def test_auto_does_without_triton_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert choose_attention("auto", torch.device("cuda")) == "reference"
    with pytest.raises(UserError, match=r"Triton is not installed; .* Choose attention_backend=auto or reference"):
        make_attention("triton", spec(2, 1, 64))


@needs_triton
def test_graphs_are_for_the_backends_that_can_be_captured() -> None:
    assert isinstance(make_attention("triton", spec(2, 1, 64)), GraphAttentionBackend)
    assert not isinstance(make_attention("reference", spec(2, 1, 64)), GraphAttentionBackend)


@needs_triton
def test_compiled_kernels_are_refused_on_the_cpu_with_what_to_choose(tmp_path: Path) -> None:
    program = """
import torch
from engine.attention.base import AttentionSpec
from engine.attention.registry import make_attention
make_attention("triton", AttentionSpec(2, 1, 64, None, torch.float32, torch.device("cpu")))
"""
    refusal = run_without_interpreter("-c", program, cache=tmp_path).stderr
    assert (
        "'triton' is not possible on cpu: it needs a CUDA device; choose attention_backend=auto or reference" in refusal
    )


@needs_triton
def test_every_kernel_compiles_for_a_card_that_is_not_here(tmp_path: Path) -> None:
    result = run_without_interpreter("-m", "tests.engine.compile_triton_kernels", cache=tmp_path)
    assert result.stdout == "compiled\n", result.stderr


def test_timings_count_what_one_layer_reads_and_computes() -> None:
    cpu = torch.device("cpu")
    shape = AttentionSpec(4, 2, 16, None, torch.float32, cpu)
    decode = time_decode(ReferenceAttention(shape), shape, batch=3, context=40)
    kv_token = 2 * 2 * 16 * 4
    assert decode.bytes_moved == 3 * 40 * kv_token + 3 * (2 * 4 * 16 * 4 + 2 * kv_token)
    assert decode.flops == 4 * 4 * 16 * 3 * 40
    assert decode.bytes_per_s == decode.bytes_moved / decode.seconds
    prefill = time_prefill(ReferenceAttention(shape), shape, prompts=2, tokens=10)
    assert prefill.flops == 4 * 4 * 16 * 2 * 55
    assert prefill.flops_per_s > 0


def test_timings_under_a_sliding_window_count_what_is_in_it() -> None:
    shape = AttentionSpec(1, 1, 16, 8, torch.float32, torch.device("cpu"))
    decode = time_decode(ReferenceAttention(shape), shape, batch=1, context=40)
    assert decode.flops == 4 * 16 * 8
    kv_token = 2 * 16 * 4
    assert decode.bytes_moved == 8 * kv_token + 2 * 16 * 4 + 2 * kv_token
