"""Passes over whole rows of logits: maxima and exp-sums of tiles, the draw, and the n best. Grid (rows, segments)."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_gpuworker.kernels.triton.philox import gumbel_noise
from octavo_gpuworker.kernels.triton.sampling_search import row_total

NOWHERE: tl.constexpr = tl.constexpr(2147483647)
"""Above every token id."""
MOST_NOISE: tl.constexpr = tl.constexpr(16.75)
"""No Gumbel noise of 24-bit uniforms is larger: -ln(-ln(1 - 2^-24)) = 16.64."""


@triton.jit(do_not_specialize=["vocab_size", "stride_allowed", "tiles", "segments"])
def sample_scan_kernel(
    tile_max,
    segment_max,
    segment_sum,
    logits,
    temperature,
    allowed,
    allowed_rows,
    vocab_size,
    stride_logits,
    stride_allowed,
    tiles,
    segments,
    TILE: tl.constexpr,
    TILES_PER_SEGMENT: tl.constexpr,
    SCALED: tl.constexpr,
    GRAMMAR: tl.constexpr,
):
    """Per tile the largest logit; per segment the largest of x / temperature and the sum of exp(that - largest).

    A NaN or +inf makes the sum NaN. GRAMMAR overwrites forbidden logits with -inf first. Grid: (R, segments).
    """
    row = tl.program_id(0).to(tl.int64)
    segment = tl.program_id(1)
    heat = 1.0
    if SCALED:
        heat = tl.load(temperature + row)
        heat = tl.where(heat > 0, heat, 1.0)
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    broken = tl.full([], 0, tl.int32)
    first = segment * TILES_PER_SEGMENT
    for tile in range(first, tl.minimum(first + TILES_PER_SEGMENT, tiles)):
        token = tile * TILE + tl.arange(0, TILE)
        inside = token < vocab_size
        x = tl.load(logits + row * stride_logits + token, mask=inside, other=float("-inf"))
        wild = (x != x) | (x == float("inf"))
        broken = tl.maximum(broken, tl.max(wild.to(tl.int32), 0))
        x = tl.where(wild, float("-inf"), x)
        if GRAMMAR:
            mask_row = tl.load(allowed_rows + row)
            if mask_row >= 0:
                word = tl.load(allowed + mask_row.to(tl.int64) * stride_allowed + (token >> 5), mask=inside, other=0)
                forbidden = ((word >> (token & 31)) & 1) == 0
                x = tl.where(forbidden, float("-inf"), x)
                tl.store(logits + row * stride_logits + token, x, mask=inside & forbidden)
        peak = tl.max(x, 0)
        tl.store(tile_max + row * tiles + tile, peak)
        if SCALED:
            x = tl.div_rn(x, tl.zeros([TILE], tl.float32) + heat)
            peak = tl.div_rn(peak, heat)
        higher = tl.maximum(top, peak)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(top - base) + tl.sum(tl.exp(x - base), 0)
        top = higher
    tl.store(segment_max + row * segments + segment, top)
    tl.store(segment_sum + row * segments + segment, tl.where(broken > 0, float("nan"), total))


@triton.jit(do_not_specialize=["vocab_size", "tiles", "segments"])
def sample_draw_kernel(
    best,
    best_token,
    logits,
    tile_max,
    threshold,
    temperature,
    seeds,
    positions,
    vocab_size,
    stride_logits,
    tiles,
    segments,
    TILE: tl.constexpr,
    TILES_PER_SEGMENT: tl.constexpr,
):
    """Per segment the largest of scaled logit + noise among what the threshold keeps, and its token. Grid: (R, segments)."""
    row = tl.program_id(0).to(tl.int64)
    segment = tl.program_id(1)
    heat = tl.load(temperature + row)
    random = heat > 0
    heat = tl.where(random, heat, 1.0)
    cut = tl.where(random, tl.load(threshold + row), float("-inf"))
    reach = tl.where(random, MOST_NOISE, 0.0)
    seed = tl.load(seeds + row)
    position = tl.load(positions + row)
    most = tl.full([], float("-inf"), tl.float32)
    where = tl.full([], NOWHERE, tl.int32)
    first = segment * TILES_PER_SEGMENT
    for tile in range(first, tl.minimum(first + TILES_PER_SEGMENT, tiles)):
        peak = tl.div_rn(tl.load(tile_max + row * tiles + tile), heat)
        # Most tiles hold nothing that survives, or nothing that noise could lift above the best so far.
        if (peak >= cut) & (peak + reach > most):
            token = tile * TILE + tl.arange(0, TILE)
            x = tl.load(logits + row * stride_logits + token, mask=token < vocab_size, other=float("-inf"))
            x = tl.div_rn(x, tl.zeros([TILE], tl.float32) + heat)
            x = tl.where(x >= cut, x, float("-inf"))
            if random:
                x = x + gumbel_noise(seed, position, tile * TILE, TILE)
            value = tl.max(x, 0)
            lowest = tl.min(tl.where(x == value, token, NOWHERE), 0)
            where = tl.where(value > most, lowest, where)
            most = tl.maximum(most, value)
    tl.store(best + row * segments + segment, most)
    tl.store(best_token + row * segments + segment, where)


@triton.jit(do_not_specialize=["stride_raw", "segments"])
def sample_finish_kernel(
    tokens,
    logprobs,
    best,
    best_token,
    segment_sum,
    raw,
    raw_max,
    raw_sum,
    stride_raw,
    segments,
    SEGMENTS: tl.constexpr,
    LOGPROBS: tl.constexpr,
):
    """tokens[row], -1 where the row is broken or empty; with LOGPROBS its log-probability in the raw logits. Grid: (R,)."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, SEGMENTS)
    inside = index < segments
    values = tl.load(best + row * segments + index, mask=inside, other=float("-inf"))
    found = tl.load(best_token + row * segments + index, mask=inside, other=NOWHERE)
    most = tl.max(values, 0)
    token = tl.min(tl.where(values == most, found, NOWHERE), 0)
    sums = tl.load(segment_sum + row * segments + index, mask=inside, other=0.0)
    broken = tl.max((sums != sums).to(tl.int32), 0) > 0
    lost = broken | (most == float("-inf"))
    tl.store(tokens + row, tl.where(lost, -1, token).to(tl.int64))
    if LOGPROBS:
        top, total = row_total(raw_max + row * segments, raw_sum + row * segments, SEGMENTS, segments)
        value = tl.load(raw + row * stride_raw + tl.where(lost, 0, token))
        tl.store(logprobs + row, value - top - tl.log(total))


@triton.jit(do_not_specialize=["wanted", "vocab_size", "tiles", "segments"])
def sample_best_kernel(
    top_tokens,
    top_logprobs,
    raw,
    tile_max,
    raw_max,
    raw_sum,
    wanted,
    vocab_size,
    stride_raw,
    tiles,
    segments,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """The `wanted` best of a row, best first, of equal ones the lower token. Grid: (R,).

    Takes the best tile's best, then lowers that tile's maximum to its next: a tile is read once per token that it yields.
    """
    row = tl.program_id(0).to(tl.int64)
    top, total = row_total(raw_max + row * segments, raw_sum + row * segments, SEGMENTS, segments)
    shift = top + tl.log(total)
    index = tl.arange(0, TILES)
    peaks = tl.load(tile_max + row * tiles + index, mask=index < tiles, other=float("-inf"))
    last = tl.full([], float("inf"), tl.float32)
    last_token = tl.full([], -1, tl.int32)
    for rank in range(0, wanted):
        peak = tl.max(peaks, 0)
        tile = tl.min(tl.where((peaks == peak) & (index < tiles), index, NOWHERE), 0)
        tile = tl.minimum(tile, tiles - 1)
        token = tile * TILE + tl.arange(0, TILE)
        x = tl.load(raw + row * stride_raw + token, mask=token < vocab_size, other=float("-inf"))
        behind = (token < vocab_size) & ((x < last) | ((x == last) & (token > last_token)))
        value = tl.max(tl.where(behind, x, float("-inf")), 0)
        found = tl.min(tl.where(behind & (x == value), token, NOWHERE), 0)
        tl.store(top_tokens + row * wanted + rank, found.to(tl.int64))
        tl.store(top_logprobs + row * wanted + rank, value - shift)
        last = value
        last_token = found
        left = behind & ((x < last) | ((x == last) & (token > last_token)))
        following = tl.max(tl.where(left, x, float("-inf")), 0)
        peaks = tl.where(index == tile, following, peaks)
