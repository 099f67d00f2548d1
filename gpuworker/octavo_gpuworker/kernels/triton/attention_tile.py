"""One range of keys under online softmax: the loop that prefill and decode attention share.

FlashAttention-2 (arXiv 2307.08691) over block tables (PagedAttention, arXiv 2309.06180). Running maximum and sum are in
float32 and base 2: exp2 is one instruction on the GPU, so the softmax scale carries log2(e).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attend_range(
    q,
    acc,
    row_max,
    row_sum,
    start,
    end,
    row_position,
    window,
    table,
    kv,
    scales,
    stride_block,
    stride_half,
    stride_token,
    stride_scale_block,
    stride_scale_half,
    qk_scale,
    soft_cap,
    block_shift,
    TILE_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOWED: tl.constexpr,
    QUANTIZED: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Takes the keys of positions [start, end) into (acc [M, D], row_max [M], row_sum [M]), all float32; returns the three.

    q [M, D]; row_position [M]: a row sees keys at positions in (row_position - window, row_position].
    `kv` points at one KV head of one layer, `table` at one sequence's row. Unmasked: every row sees every key, and the range
    is whole tiles. K and V of masked keys are not read, so a NaN in an unused slot of a block stays there.
    """
    dims = tl.arange(0, HEAD_DIM)
    block_mask = (1 << block_shift) - 1
    for base in range(start, end, TILE_N):
        keys = base + tl.arange(0, TILE_N)
        if MASKED:
            inside = keys < end
            blocks = tl.load(table + (keys >> block_shift), mask=inside, other=0).to(tl.int64)
        else:
            blocks = tl.load(table + (keys >> block_shift)).to(tl.int64)
        offsets = (keys & block_mask).to(tl.int64)
        slots = kv + blocks * stride_block + offsets * stride_token
        if MASKED:
            k = tl.load(slots[None, :] + dims[:, None], mask=inside[None, :], other=0.0)
        else:
            k = tl.load(slots[None, :] + dims[:, None])
        scores = tl.dot(q, k.to(q.dtype), input_precision=PRECISION) * qk_scale
        if QUANTIZED:
            scale_slots = scales + blocks * stride_scale_block + offsets
            if MASKED:
                scores *= tl.load(scale_slots, mask=inside, other=0.0)[None, :]
            else:
                scores *= tl.load(scale_slots)[None, :]
        if SOFT_CAP:
            # cap * tanh(x / cap) times log2(e), where x * log2(e) is what scores holds; tanh(y) = 1 - 2 / (exp(2y) + 1).
            scores = 1.4426950408889634 * soft_cap * (1.0 - 2.0 / (tl.exp2(scores * (2.0 / soft_cap)) + 1.0))
        if MASKED:
            visible = inside[None, :] & (keys[None, :] <= row_position[:, None])
            if WINDOWED:
                visible = visible & (keys[None, :] > row_position[:, None] - window)
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        # A row that has seen no key yet keeps -inf; subtracting 0 in its stead keeps NaN out.
        reference = tl.where(new_max == float("-inf"), 0.0, new_max) if MASKED else new_max
        weights = tl.exp2(scores - reference[:, None])
        decay = tl.exp2(row_max - reference)
        row_sum = row_sum * decay + tl.sum(weights, 1)
        row_max = new_max
        values = slots + stride_half
        if MASKED:
            v = tl.load(values[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
        else:
            v = tl.load(values[:, None] + dims[None, :])
        if QUANTIZED:
            if MASKED:
                weights *= tl.load(scale_slots + stride_scale_half, mask=inside, other=0.0)[None, :]
            else:
                weights *= tl.load(scale_slots + stride_scale_half)[None, :]
        acc = acc * decay[:, None]
        acc = tl.dot(weights.to(q.dtype), v.to(q.dtype), acc, input_precision=PRECISION)
    return acc, row_max, row_sum
