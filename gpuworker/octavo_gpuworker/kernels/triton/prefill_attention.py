"""Paged prefill attention: chunks of any length over cached and new KV, causal, ragged, in one launch without padding.

The grid counts tiles of queries over the whole step. A program finds its sequence by bisection of query_start, so the host
needs no list of tiles and no sequence is padded to the longest (as vLLM's unified attention, arXiv 2511.11581).
The query heads of one KV head are rows of one tile: each key is read once for all of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_gpuworker.kernels.triton.attention_tile import attend_range

NOT_SPECIALIZED = (
    "sequences",
    "group",
    "window",
    "min_query",
    "stride_table",
    "stride_scale_block",
    "stride_scale_half",
    "stride_scale_head",
    "block_shift",
)
"""Integers whose value (1, or a multiple of 16) must not make another binary: one serves every GQA ratio and block size."""


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def paged_prefill_kernel(
    out,
    q,
    kv,
    scales,
    query_start,
    context_len,
    block_tables,
    sequences,
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
    min_query,
    block_shift,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WINDOWED: tl.constexpr,
    QUANTIZED: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out [T, q_heads * D] of the sequences with at least `min_query` new tokens; rows of others are left alone.

    Grid: (T // (TILE_M // group) + S, kv_heads); surplus programs return at once.
    """
    # Late tiles see the most keys: started first, they leave no tail.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    tokens_per_tile = TILE_M // group
    low = 0
    high = sequences
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_start + middle) // tokens_per_tile + middle <= tile:
            low = middle + 1
        else:
            high = middle
    seq = low - 1
    begin = tl.load(query_start + seq)
    count = tl.load(query_start + seq + 1) - begin
    first = (tile - begin // tokens_per_tile - seq) * tokens_per_tile
    if (first >= count) | (count < min_query):
        return
    context = tl.load(context_len + seq)
    rows = tl.arange(0, TILE_M)
    token = first + rows // group
    valid = (rows < tokens_per_tile * group) & (token < count)
    row_position = context - count + token
    dims = tl.arange(0, HEAD_DIM)
    heads = head * group + rows % group
    q_rows = q + (begin + token).to(tl.int64) * stride_q_token + heads * stride_q_head
    queries = tl.load(q_rows[:, None] + dims[None, :], mask=valid[:, None], other=0.0)

    first_position = context - count + first
    last_key = tl.minimum(first_position + tokens_per_tile, context)
    # Keys before `whole_end` are seen by every row: no mask is needed up to there.
    whole_end = (first_position + 1) // TILE_N * TILE_N
    acc = tl.zeros([TILE_M, HEAD_DIM], dtype=tl.float32)
    row_max = tl.full([TILE_M], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([TILE_M], dtype=tl.float32)
    table = block_tables + tl.cast(seq, tl.int64) * stride_table
    kv += head * stride_head
    if QUANTIZED:
        scales += head * stride_scale_head
    start = 0
    if WINDOWED:
        start = tl.maximum(first_position - window + 1, 0) // TILE_N * TILE_N
        # The last row's window begins latest; from there on, whole tiles are seen by every row.
        whole_start = tl.cdiv(tl.maximum(last_key - window, 0), TILE_N) * TILE_N
        whole_start = tl.minimum(tl.maximum(whole_start, start), tl.maximum(whole_end, start))
        acc, row_max, row_sum = attend_range(
            queries, acc, row_max, row_sum, start, whole_start, row_position, window, table, kv, scales,
            stride_block, stride_half, stride_token, stride_scale_block, stride_scale_half, qk_scale, soft_cap, block_shift,
            TILE_N, HEAD_DIM, True, True, QUANTIZED, SOFT_CAP, PRECISION,
        )  # fmt: skip
        start = whole_start
    acc, row_max, row_sum = attend_range(
        queries, acc, row_max, row_sum, start, whole_end, row_position, window, table, kv, scales,
        stride_block, stride_half, stride_token, stride_scale_block, stride_scale_half, qk_scale, soft_cap, block_shift,
        TILE_N, HEAD_DIM, False, False, QUANTIZED, SOFT_CAP, PRECISION,
    )  # fmt: skip
    acc, row_max, row_sum = attend_range(
        queries, acc, row_max, row_sum, tl.maximum(start, whole_end), last_key, row_position, window, table, kv, scales,
        stride_block, stride_half, stride_token, stride_scale_block, stride_scale_half, qk_scale, soft_cap, block_shift,
        TILE_N, HEAD_DIM, True, WINDOWED, QUANTIZED, SOFT_CAP, PRECISION,
    )  # fmt: skip
    result = acc / tl.where(row_sum > 0.0, row_sum, 1.0)[:, None]
    out_rows = out + (begin + token).to(tl.int64) * stride_out_token + heads * HEAD_DIM
    tl.store(out_rows[:, None] + dims[None, :], result.to(out.dtype.element_ty), mask=valid[:, None])
