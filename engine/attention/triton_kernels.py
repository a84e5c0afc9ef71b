"""The device's side of the `triton` backend: write a step's keys and values, attend in tiles, join what was split.

Whoever launches these works from tables that the host wrote (`engine.attention.triton_tables`); nothing here decides
what is computed. Grids may be larger than the work: what is left over finds an empty table entry and ends at once.

Pages are `[kv_heads, block_size, head_dim]`. Sizes that a model fixes are compile-time constants, so that the
compiler sees how rows are aligned; numbers that change from step to step are only in the tables, so that no step
waits for a compilation.

The softmax is the running one of Milakov and Gimelshein (2018), over tiles as in FlashAttention-2 (Dao, 2023), in
base 2; splitting a context and joining its parts by their log-sum-exp is Flash-Decoding (Dao et al., 2023).
"""

import triton
import triton.language as tl

from engine.attention import triton_tables as tables

_ITEM_FIELDS = tl.constexpr(tables.ITEM_FIELDS)
_JOIN_FIELDS = tl.constexpr(tables.JOIN_FIELDS)
# Parts that are joined at a time: one context in dozens of parts must not wait for as many loads in a row.
_JOINED_PARTS = tl.constexpr(16)


@triton.jit
def _to_page(x, page_type: tl.constexpr):
    """Numbers as the cache keeps them; what is too large becomes the largest, as an infinite key spoils a softmax."""
    if page_type == tl.float8e4nv:
        x = tl.clamp(x.to(tl.float32), -448.0, 448.0)
    elif page_type == tl.float16:
        x = tl.clamp(x.to(tl.float32), -65504.0, 65504.0)
    return x.to(page_type)


@triton.jit
def write_kv(
    pages_k,
    pages_v,
    new_k,
    new_v,
    slots,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    KV_HEADS: tl.constexpr,
    PADDED_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Copy one token's keys and values, `[kv_heads, head_dim]` each, to its slot; a slot below 0 is nowhere.

    Grid: `[tokens]`.
    """
    token = tl.program_id(0)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    heads = tl.arange(0, PADDED_KV_HEADS)[:, None]
    dims = tl.arange(0, PADDED_DIM)[None, :]
    real = (heads < KV_HEADS) & (dims < HEAD_DIM)  # [kv_heads, head_dim]
    row = token.to(tl.int64)
    k = tl.load(new_k + row * k_token_stride + heads * k_head_stride + dims, mask=real)
    v = tl.load(new_v + row * v_token_stride + heads * v_head_stride + dims, mask=real)
    page = (slot // BLOCK_SIZE).to(tl.int64) * (KV_HEADS * BLOCK_SIZE * HEAD_DIM)
    place = page + (heads * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM + dims
    tl.store(pages_k + place, _to_page(k, pages_k.dtype.element_ty), mask=real)
    tl.store(pages_v + place, _to_page(v, pages_v.dtype.element_ty), mask=real)


@triton.jit
def _load_rows(pages, rows, dims, seen, MASKED: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr):
    """Rows `[keys, head_dim]` of the cache; zeros where a key is not to be seen, whatever a former owner left there."""
    where = pages + rows[:, None] + dims[None, :]
    if MASKED:
        return tl.load(where, mask=seen[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    if HEAD_DIM != PADDED_DIM:
        return tl.load(where, mask=(dims < HEAD_DIM)[None, :], other=0.0)
    return tl.load(where)


@triton.jit
def _attend_keys(
    acc,  # [rows, head_dim], sum of values so far, weighted relative to `top`
    total,  # [rows], sum of weights so far
    top,  # [rows], largest score so far
    q,  # [rows, head_dim]
    position,  # [rows], where in its sequence each row is
    begin,
    end,
    pages_k,
    pages_v,
    page_ids,
    head_offset,
    scale_log2,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Take the keys `begin .. end - 1` into the running softmax. Unmasked, every row sees all of every tile."""
    dims = tl.arange(0, PADDED_DIM)
    for start in range(begin, end, TILE_KEYS):
        key = start + tl.arange(0, TILE_KEYS)
        present = key < end
        if MASKED:
            page = tl.load(page_ids + key // BLOCK_SIZE, mask=present, other=0)
        else:
            page = tl.load(page_ids + key // BLOCK_SIZE)
        rows = page.to(tl.int64) * (KV_HEADS * BLOCK_SIZE * HEAD_DIM) + head_offset + (key % BLOCK_SIZE) * HEAD_DIM
        k = _load_rows(pages_k, rows, dims, present, MASKED, HEAD_DIM, PADDED_DIM).to(q.dtype)  # [keys, head_dim]
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2  # [rows, keys]
        if MASKED:
            attends = present[None, :] & (key[None, :] <= position[:, None])
            if WINDOW > 0:
                attends = attends & (key[None, :] > position[:, None] - WINDOW)
            score = tl.where(attends, score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        # A row that has seen nothing yet has no largest score; any finite number does in its place.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.exp2(score - base[:, None])
        fade = tl.exp2(top - base)
        total = total * fade + tl.sum(weight, 1)
        v = _load_rows(pages_v, rows, dims, present, MASKED, HEAD_DIM, PADDED_DIM).to(q.dtype)  # [keys, head_dim]
        acc = tl.dot(weight.to(v.dtype), v, acc * fade[:, None], input_precision=PRECISION)
        top = new_top
    return acc, total, top


@triton.jit
def attend_tiles(
    out,  # [tokens, heads, head_dim]
    part_out,  # float32 [parts, heads, head_dim]
    part_lse,  # float32 [parts, heads], log2 of the part's sum of exponentials
    query,  # [tokens, heads, head_dim] by its strides
    pages_k,
    pages_v,
    items,
    page_ids,
    q_token_stride,
    q_head_stride,
    scale_log2,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attend with some neighbouring tokens of one request, all query heads of one KV head together.

    Row `r` of the tile is token `r // GROUP` and query head `r % GROUP` of those that share the KV head, so keys and
    values are read once for all of them. Grid: `[items, kv_heads]`.
    """
    item = items + tl.program_id(0) * _ITEM_FIELDS
    num_tokens = tl.load(item + 1)
    if num_tokens == 0:
        return
    first_row = tl.load(item).to(tl.int64)
    first_position = tl.load(item + 2)
    page_ids += tl.load(item + 3)
    begin = tl.load(item + 4)
    end = tl.load(item + 5)
    part = tl.load(item + 6)
    kv_head = tl.program_id(1)

    row = tl.arange(0, TILE_ROWS)
    token = row // GROUP
    head = kv_head * GROUP + row % GROUP
    dims = tl.arange(0, PADDED_DIM)
    real = (token < num_tokens)[:, None] & (dims < HEAD_DIM)[None, :]  # [rows, head_dim]
    where = (first_row + token) * q_token_stride + head * q_head_stride
    q = tl.load(query + where[:, None] + dims[None, :], mask=real, other=0.0)
    position = first_position + token

    acc = tl.zeros([TILE_ROWS, PADDED_DIM], dtype=tl.float32)
    total = tl.zeros([TILE_ROWS], dtype=tl.float32)
    top = tl.full([TILE_ROWS], float("-inf"), dtype=tl.float32)
    head_offset = kv_head * (BLOCK_SIZE * HEAD_DIM)
    # Whole tiles that the first token sees are seen by all, and need no mask.
    seen_by_all = begin
    if WINDOW == 0:
        visible = tl.minimum(end, first_position + 1) - begin
        seen_by_all = begin + tl.maximum(visible, 0) // TILE_KEYS * TILE_KEYS
        acc, total, top = _attend_keys(
            acc, total, top, q, position, begin, seen_by_all, pages_k, pages_v, page_ids, head_offset, scale_log2,
            HEAD_DIM, PADDED_DIM, KV_HEADS, BLOCK_SIZE, WINDOW, TILE_KEYS, PRECISION, False,
        )  # fmt: skip
    acc, total, top = _attend_keys(
        acc, total, top, q, position, seen_by_all, end, pages_k, pages_v, page_ids, head_offset, scale_log2,
        HEAD_DIM, PADDED_DIM, KV_HEADS, BLOCK_SIZE, WINDOW, TILE_KEYS, PRECISION, True,
    )  # fmt: skip

    # A row without context has a total of 0, and its result is 0.
    divisor = tl.where(total > 0, total, 1.0)
    result = acc / divisor[:, None]
    if part < 0:
        out_row = (first_row + token) * (KV_HEADS * GROUP) + head
        tl.store(out + out_row[:, None] * HEAD_DIM + dims[None, :], result.to(out.dtype.element_ty), mask=real)
    else:
        part_row = part * (KV_HEADS * GROUP) + head
        tl.store(part_out + part_row[:, None] * HEAD_DIM + dims[None, :], result, mask=real)
        lse = tl.where(total > 0, top + tl.log2(divisor), float("-inf"))
        tl.store(part_lse + part_row, lse, mask=token < num_tokens)


@triton.jit
def join_parts(
    out,  # [tokens, heads, head_dim]
    part_out,  # float32 [parts, heads, head_dim]
    part_lse,  # float32 [parts, heads]
    joins,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
):
    """Join the parts of one row and head, weighted by their sums of exponentials. Grid: `[joins, heads]`."""
    join = joins + tl.program_id(0) * _JOIN_FIELDS
    num_parts = tl.load(join + 2)
    if num_parts == 0:
        return
    row = tl.load(join).to(tl.int64)
    first = tl.load(join + 1)
    head = tl.program_id(1)
    dims = tl.arange(0, PADDED_DIM)
    acc = tl.zeros([PADDED_DIM], dtype=tl.float32)
    total = 0.0
    top = float("-inf")
    for start in range(0, num_parts, _JOINED_PARTS):
        part = start + tl.arange(0, _JOINED_PARTS)
        place = (first + part) * HEADS + head  # [parts]
        lse = tl.load(part_lse + place, mask=part < num_parts, other=float("-inf"))
        real = (part < num_parts)[:, None] & (dims < HEAD_DIM)[None, :]
        result = tl.load(part_out + place[:, None] * HEAD_DIM + dims[None, :], mask=real, other=0.0)
        # Every part has at least one key, so the largest is finite from the first round on.
        new_top = tl.maximum(top, tl.max(lse, 0))
        fade = tl.exp2(top - new_top)
        weight = tl.exp2(lse - new_top)
        acc = acc * fade + tl.sum(result * weight[:, None], 0)
        total = total * fade + tl.sum(weight, 0)
        top = new_top
    tl.store(out + (row * HEADS + head) * HEAD_DIM + dims, (acc / total).to(out.dtype.element_ty), mask=dims < HEAD_DIM)
