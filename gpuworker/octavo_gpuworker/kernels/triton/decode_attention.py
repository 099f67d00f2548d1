"""Paged decode attention: 1 to 8 new tokens per sequence, the keys split over programs where one pass would idle the GPU.

Flash-decoding (Dao et al., 2023): each split leaves a normalised partial result and its log-sum-exp, a second kernel combines
them. With one split the result is written at once. The query heads of one KV head, times the new tokens (speculative
verification), are the rows of one tensor-core tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_gpuworker.kernels.triton.attention_tile import attend_range

NOT_SPECIALIZED = (
    "q_heads",
    "group",
    "window",
    "max_query",
    "splits",
    "stride_table",
    "stride_scale_block",
    "stride_scale_half",
    "stride_scale_head",
    "block_shift",
)
"""Integers whose value (1, or a multiple of 16) must not make another binary: one serves every GQA ratio and block size."""


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def paged_decode_kernel(
    out,
    partial,
    partial_lse,
    q,
    kv,
    scales,
    query_start,
    context_len,
    block_tables,
    q_heads,
    group,
    stride_q_token,
    stride_q_head,
    stride_out_token,
    stride_block,
    stride_half,
    stride_head,
    stride_token,
    stride_scale_block,
    stride_scale_half,
    stride_scale_head,
    stride_table,
    qk_scale,
    soft_cap,
    window,
    max_query,
    splits,
    block_shift,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    QUANTIZED: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sequences with 1..max_query new tokens; others are left alone (a graph's padding has none).

    SPLIT: partial [T, q_heads, splits, D] and partial_lse [T, q_heads, splits] float32 (base 2; -inf for a split without keys,
    whose partial is not written). Otherwise out [T, q_heads * D]. Grid: (S, kv_heads, splits).
    """
    seq = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    begin = tl.load(query_start + seq)
    count = tl.load(query_start + seq + 1) - begin
    if (count == 0) | (count > max_query):
        return
    context = tl.load(context_len + seq)
    rows = tl.arange(0, TILE_M)
    token = rows // group
    valid = token < count
    row_position = context - count + token
    dims = tl.arange(0, HEAD_DIM)
    heads = head * group + rows % group
    q_rows = q + (begin + token).to(tl.int64) * stride_q_token + heads * stride_q_head
    queries = tl.load(q_rows[:, None] + dims[None, :], mask=valid[:, None], other=0.0)

    # Reading keys is what takes the time here, so one masked loop serves with and without a window.
    start = tl.maximum(context - count - window + 1, 0) // TILE_N * TILE_N
    end = context
    if SPLIT:
        tiles_per_split = tl.cdiv(tl.cdiv(context - start, TILE_N), splits)
        start += split * tiles_per_split * TILE_N
        end = tl.minimum(start + tiles_per_split * TILE_N, context)
    acc = tl.zeros([TILE_M, HEAD_DIM], dtype=tl.float32)
    row_max = tl.full([TILE_M], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([TILE_M], dtype=tl.float32)
    table = block_tables + seq.to(tl.int64) * stride_table
    kv += head * stride_head
    if QUANTIZED:
        scales += head * stride_scale_head
    acc, row_max, row_sum = attend_range(
        queries, acc, row_max, row_sum, start, end, row_position, window, table, kv, scales,
        stride_block, stride_half, stride_token, stride_scale_block, stride_scale_half, qk_scale, soft_cap, block_shift,
        TILE_N, HEAD_DIM, True, True, QUANTIZED, SOFT_CAP, PRECISION,
    )  # fmt: skip
    result = acc / tl.where(row_sum > 0.0, row_sum, 1.0)[:, None]
    if SPLIT:
        slot = ((begin + token).to(tl.int64) * q_heads + heads) * splits + split
        seen = row_sum > 0.0
        lse = tl.where(seen, row_max + tl.log2(tl.where(seen, row_sum, 1.0)), float("-inf"))
        tl.store(partial_lse + slot, lse, mask=valid)
        tl.store(partial + slot[:, None] * HEAD_DIM + dims[None, :], result, mask=(valid & seen)[:, None])
    else:
        out_rows = out + (begin + token).to(tl.int64) * stride_out_token + heads * HEAD_DIM
        tl.store(out_rows[:, None] + dims[None, :], result.to(out.dtype.element_ty), mask=valid[:, None])


@triton.jit(do_not_specialize=["q_heads", "max_query", "splits"])
def paged_decode_reduce_kernel(
    out,
    partial,
    partial_lse,
    query_start,
    q_heads,
    stride_out_token,
    max_query,
    splits,
    HEAD_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Combines the splits of each (new token, query head) into out [T, q_heads * D]. Grid: (S, q_heads, max_query)."""
    seq = tl.program_id(0)
    head = tl.program_id(1)
    begin = tl.load(query_start + seq)
    count = tl.load(query_start + seq + 1) - begin
    if (tl.program_id(2) >= count) | (count > max_query):
        return
    token = (begin + tl.program_id(2)).to(tl.int64)
    first = (token * q_heads + head) * splits
    dims = tl.arange(0, HEAD_DIM)
    best = tl.full([CHUNK], float("-inf"), dtype=tl.float32)
    for base in range(0, splits, CHUNK):
        index = base + tl.arange(0, CHUNK)
        best = tl.maximum(best, tl.load(partial_lse + first + index, mask=index < splits, other=float("-inf")))
    top = tl.max(best, 0)
    acc = tl.zeros([HEAD_DIM], dtype=tl.float32)
    total = tl.zeros([CHUNK], dtype=tl.float32)
    for base in range(0, splits, CHUNK):
        index = base + tl.arange(0, CHUNK)
        lse = tl.load(partial_lse + first + index, mask=index < splits, other=float("-inf"))
        weights = tl.exp2(lse - top)
        rows = partial + (first + index) * HEAD_DIM
        # An empty split wrote no partial; its memory may hold anything, NaN included.
        part = tl.load(rows[:, None] + dims[None, :], mask=(lse > float("-inf"))[:, None], other=0.0)
        acc += tl.sum(weights[:, None] * part, 0)
        total += weights
    result = acc / tl.sum(total, 0)
    tl.store(out + token * stride_out_token + head * HEAD_DIM + dims, result.to(out.dtype.element_ty))
