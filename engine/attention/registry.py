"""Attention backends by name. A new one is one file and one line here."""

import importlib.util
from collections.abc import Callable

import torch

from engine.attention.base import AttentionBackend, AttentionSpec
from engine.attention.reference import ReferenceAttention
from engine.errors import UserError
from engine.native.kernels import PAGE_NUMBERS
from engine.native.library import native_library

AUTO = "auto"


def _triton(spec: AttentionSpec) -> AttentionBackend:
    from engine.attention.triton_tuning import make_triton

    return make_triton(spec)


def _cpu(spec: AttentionSpec) -> AttentionBackend:
    from engine.attention.cpu_attention import make_cpu

    return make_cpu(spec)


ATTENTION_BACKENDS: dict[str, Callable[[AttentionSpec], AttentionBackend]] = {
    "reference": ReferenceAttention,
    "cpu": _cpu,
    "triton": _triton,
}


def choose_attention(
    name: str, device: torch.device, dtype: torch.dtype = torch.float32, kv_dtype: torch.dtype | None = None
) -> str:
    """The backend that `name` means.

    `auto` is `triton` on a CUDA device where Triton is installed, `cpu` for float32 (with a KV cache of at least 16
    bits) on a CPU where its kernels could be compiled, else `reference`.

    Raises:
        UserError: there is none of that name, or it is not installed.
    """
    if name == AUTO:
        if device.type == "cuda":
            return "triton" if _has_triton() else "reference"
        has_kernels = dtype is torch.float32 and (kv_dtype is None or kv_dtype in PAGE_NUMBERS)
        return "cpu" if has_kernels and native_library() is not None else "reference"
    if name not in ATTENTION_BACKENDS:
        known = ", ".join([AUTO, *ATTENTION_BACKENDS])
        raise UserError(f"attention backend {name!r} does not exist: choose one of {known}")
    if name == "triton" and not _has_triton():
        raise UserError(
            "attention backend 'triton' is not possible: Triton is not installed; it comes with torch's CUDA build "
            "for Linux. Choose attention_backend=auto or reference"
        )
    return name


def make_attention(name: str, spec: AttentionSpec) -> AttentionBackend:
    """The backend called `name`.

    Raises:
        UserError: there is none of that name, or it cannot run here.
    """
    return ATTENTION_BACKENDS[choose_attention(name, spec.device, spec.dtype, spec.kv_dtype)](spec)


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
