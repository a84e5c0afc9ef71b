"""Makes the `triton` backend: sees that it can run, and picks its tile shapes.

On a card a handful of shapes is tried when the first backend of a model's shape is made, on made-up steps. Nothing
is tried at a step: that would stall it, and could not be part of a CUDA graph.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from subprocess import CalledProcessError

import torch
import triton
from triton.runtime.errors import OutOfResources, PTXASError

from engine.attention import triton_kernels
from engine.attention.base import AttentionSpec
from engine.attention.timing import time_decode, time_prefill
from engine.attention.triton_attention import TritonAttention
from engine.attention.triton_shapes import TileShapes, decode_candidates, fixed_shapes, prefill_candidates
from engine.errors import UserError

_DECODE_BATCH, _DECODE_CONTEXT = 32, 1024
_PREFILL_PROMPTS, _PREFILL_TOKENS = 2, 2048
# From which on cards convert numbers of 8 bits.
_FP8_CAPABILITY = (8, 9)


def make_triton(spec: AttentionSpec) -> TritonAttention:
    """The backend, with the fastest of its tile shapes where that can be found out.

    Raises:
        UserError: there is no CUDA device under the tensors, and kernels are not interpreted; the card does not know
            the cache's numbers; or what Triton builds its launchers with is missing.
    """
    if spec.device.type == "cuda":
        _require_launchers()
        _require_numbers(spec)
        return TritonAttention(spec, tuned_shapes(spec))
    if isinstance(triton_kernels.attend_tiles, triton.JITFunction):
        raise UserError(
            f"attention backend 'triton' is not possible on {spec.device}: it needs a CUDA device; "
            "choose attention_backend=auto or reference"
        )
    return TritonAttention(spec, fixed_shapes(spec))


def _require_launchers() -> None:
    try:
        triton.runtime.driver.active.get_current_target()
    except (RuntimeError, CalledProcessError) as error:
        raise UserError(
            f"attention backend 'triton' cannot start ({str(error).splitlines()[0]}): it needs a C compiler and "
            "Python's headers; install them, or choose attention_backend=reference"
        ) from None


def _require_numbers(spec: AttentionSpec) -> None:
    capability = torch.cuda.get_device_capability(spec.device)
    if spec.page_dtype.itemsize == 1 and capability < _FP8_CAPABILITY:
        raise UserError(
            f"kv_cache_dtype=fp8 is not possible with attention backend 'triton' on {spec.device}: its kernels need "
            f"compute capability 8.9 or higher, and the card has {capability[0]}.{capability[1]}; choose "
            "kv_cache_dtype=auto, or attention_backend=reference"
        )


@cache
def tuned_shapes(spec: AttentionSpec) -> TileShapes:
    """The fastest shapes for single tokens and for chunks, found once for each model shape and device.

    Not for float32, whose products have no matrix units and take long to compile.
    """
    shapes = fixed_shapes(spec)
    if spec.dtype == torch.float32:
        return shapes
    shapes = _fastest(spec, shapes, (replace(shapes, decode=shape) for shape in decode_candidates(spec)), _decode_s)
    return _fastest(spec, shapes, (replace(shapes, prefill=shape) for shape in prefill_candidates(spec)), _prefill_s)


def _fastest(
    spec: AttentionSpec,
    fallback: TileShapes,
    candidates: Iterable[TileShapes],
    seconds: Callable[[TritonAttention], float],
) -> TileShapes:
    best, least = fallback, float("inf")
    for shapes in candidates:
        # A shape that this card cannot run, or for which there is no memory left to try it, is none to choose.
        with suppress(OutOfResources, PTXASError, torch.OutOfMemoryError):
            taken = seconds(TritonAttention(spec, shapes))
            if taken < least:
                best, least = shapes, taken
    return best


def _decode_s(backend: TritonAttention) -> float:
    return time_decode(backend, backend.spec, batch=_DECODE_BATCH, context=_DECODE_CONTEXT).seconds


def _prefill_s(backend: TritonAttention) -> float:
    return time_prefill(backend, backend.spec, prompts=_PREFILL_PROMPTS, tokens=_PREFILL_TOKENS).seconds
