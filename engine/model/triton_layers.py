"""What a card computes between matrix products, in one kernel each where torch would launch several.

Rounded once, at the end: between the steps that the plain layers round after, these stay in float32.

The module imports Triton, so only `engine.model.operations.operations_for` may import it, and only for a card.
"""

import torch
import triton
import triton.language as tl

_HEADS_PER_PROGRAM = 8
_COLUMNS_PER_PROGRAM = 1024


@triton.jit
def _rotate(
    qkv,
    cos_sin,
    q_weight,
    k_weight,
    eps,
    ALL_HEADS: tl.constexpr,
    Q_HEADS: tl.constexpr,
    TURNED_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    HEADS: tl.constexpr,
    NORM: tl.constexpr,
):
    """Norm (where the family has it) and turn some heads of one token. Grid: `[tokens, turned heads / HEADS]`."""
    token = tl.program_id(0).to(tl.int64)
    heads = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    dims = tl.arange(0, PADDED_HALF)[None, :]
    inside = dims < HALF
    real = (heads < TURNED_HEADS) & inside  # [heads, half]
    place = qkv + (token * ALL_HEADS + heads) * (2 * HALF) + dims
    first = tl.load(place, mask=real, other=0.0).to(tl.float32)
    second = tl.load(place + HALF, mask=real, other=0.0).to(tl.float32)
    if NORM:
        mean_square = (tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)) / (2 * HALF)
        scale = (1.0 / tl.sqrt(mean_square + eps))[:, None]
        is_query = heads < Q_HEADS
        q_first = tl.load(q_weight + dims, mask=inside, other=0.0).to(tl.float32)
        q_second = tl.load(q_weight + HALF + dims, mask=inside, other=0.0).to(tl.float32)
        k_first = tl.load(k_weight + dims, mask=inside, other=0.0).to(tl.float32)
        k_second = tl.load(k_weight + HALF + dims, mask=inside, other=0.0).to(tl.float32)
        first = first * scale * tl.where(is_query, q_first, k_first)
        second = second * scale * tl.where(is_query, q_second, k_second)
    cos = tl.load(cos_sin + token * (2 * HALF) + dims, mask=inside, other=0.0).to(tl.float32)
    sin = tl.load(cos_sin + token * (2 * HALF) + HALF + dims, mask=inside, other=0.0).to(tl.float32)
    tl.store(place, (first * cos - second * sin).to(qkv.dtype.element_ty), mask=real)
    tl.store(place + HALF, (second * cos + first * sin).to(qkv.dtype.element_ty), mask=real)


@triton.jit
def _gated_silu(out, gate_up, SIZE: tl.constexpr, COLUMNS: tl.constexpr):
    """`silu(gate) * up` of one token and some columns. Grid: `[tokens, SIZE / COLUMNS]`."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < SIZE
    gate = tl.load(gate_up + token * (2 * SIZE) + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + token * (2 * SIZE) + SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * SIZE + columns, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=inside)


def rotate_in_place(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    eps: float,
) -> None:
    """Turn queries and keys by their positions' angles, after the norm of each head where there is one.

    Args:
        qkv: contiguous `[tokens, num_heads + 2 * num_kv_heads, head_dim]`; values stay as they are.
        cos_sin: contiguous `[tokens, 2, head_dim / 2]`, of `RotaryTable.at`.
        norms: weights `[head_dim]` for queries and for keys; None for no norm.
        eps: of the norm.
    """
    tokens, all_heads, head_dim = qkv.shape
    turned = num_heads + num_kv_heads
    q_weight, k_weight = norms if norms is not None else (cos_sin, cos_sin)
    _rotate[(tokens, triton.cdiv(turned, _HEADS_PER_PROGRAM))](
        qkv,
        cos_sin,
        q_weight,
        k_weight,
        eps,
        ALL_HEADS=all_heads,
        Q_HEADS=num_heads,
        TURNED_HEADS=turned,
        HALF=head_dim // 2,
        PADDED_HALF=triton.next_power_of_2(head_dim // 2),
        HEADS=_HEADS_PER_PROGRAM,
        NORM=norms is not None,
        num_warps=4,
    )


def gated_silu(gate_up: torch.Tensor) -> torch.Tensor:
    """See `engine.model.layers.gated_silu`; contiguous `[tokens, 2 * intermediate]`."""
    tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(tokens, size, dtype=gate_up.dtype, device=gate_up.device)
    _gated_silu[(tokens, triton.cdiv(size, _COLUMNS_PER_PROGRAM))](
        out, gate_up, SIZE=size, COLUMNS=_COLUMNS_PER_PROGRAM, num_warps=4
    )
    return out
