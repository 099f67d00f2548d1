"""The threshold of min-p, top-k and top-p without a sort: bound, gather, bisect.

1. `sample_scan` has left the maximum of every tile. The k-th largest of them bounds the k-th largest logit from below; all
   tokens below max + ln((1 - p) Z / V) together hold less than 1 - p. What lies below the bound cannot survive.
2. `sample_gather` packs what does not into a short list (typically hundreds; the whole row only for nearly flat ones).
3. `sample_search` bisects over the list: the largest value t such that {x >= t} holds k tokens, or p of the mass. Both ends
   of the interval are always values of the list, so it ends after about log2(length) rounds with the exact one.
Masses are summed as integers (units of 2^-40 of the largest): the order in which programs appended cannot change them.
"""

from __future__ import annotations

import triton
import triton.language as tl

UNIT: tl.constexpr = tl.constexpr(1099511627776.0)
"""2^40: 2^18 tokens of mass 1 make 2^58."""
MOST: tl.constexpr = tl.constexpr(2147483647)
LEAST: tl.constexpr = tl.constexpr(-2147483648)
TINY: tl.constexpr = tl.constexpr(1e-37)
SLACK: tl.constexpr = tl.constexpr(0.125)
"""Room, in nats, for the rounding of the bounds."""


@triton.jit
def row_total(segment_max, segment_sum, SEGMENTS: tl.constexpr, segments):
    """(largest scaled logit, sum of exp(x - largest)) of one row from its segments' pairs; the sum is NaN in a broken row."""
    index = tl.arange(0, SEGMENTS)
    inside = index < segments
    largest = tl.load(segment_max + index, mask=inside, other=float("-inf"))
    sums = tl.load(segment_sum + index, mask=inside, other=0.0)
    top = tl.max(largest, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    return top, tl.sum(sums * tl.exp(largest - base), 0)


@triton.jit
def ordered_key(x):
    """float32 -> int32 in the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def from_key(key):
    """The float32 of an ordered key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["vocab_size", "tiles", "segments"])
def sample_gather_kernel(
    candidates,
    counts,
    logits,
    tile_max,
    segment_max,
    segment_sum,
    temperature,
    top_k,
    top_p,
    min_p,
    vocab_size,
    stride_logits,
    tiles,
    segments,
    TILE: tl.constexpr,
    TILES_PER_SEGMENT: tl.constexpr,
    TILES: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """Appends the row's scaled logits at or above the bound to candidates[row]; counts[row] was zero. Grid: (R, segments)."""
    row = tl.program_id(0).to(tl.int64)
    heat = tl.load(temperature + row)
    k = tl.load(top_k + row)
    p = tl.load(top_p + row)
    least = tl.load(min_p + row)
    k = tl.where(k < vocab_size, k, 0)
    # min-p alone needs no list.
    if (heat > 0) & ((k > 0) | (p < 1)):
        top, total = row_total(segment_max + row * segments, segment_sum + row * segments, SEGMENTS, segments)
        tail = tl.maximum((1 - p) * total / vocab_size, TINY)
        bound = tl.where((k > 0) | (least > 0), float("-inf"), top + tl.log(tail) - SLACK)
        bound = tl.where(least > 0, tl.maximum(bound, top + tl.log(tl.maximum(least, TINY)) - SLACK), bound)
        if (k > 0) & (k <= tiles):
            index = tl.arange(0, TILES)
            peaks = tl.load(tile_max + row * tiles + index, mask=index < tiles, other=float("-inf"))
            above = tl.zeros([TILES], tl.int32)
            for base in range(0, tiles, 16):
                other = base + tl.arange(0, 16)
                others = tl.load(tile_max + row * tiles + other, mask=other < tiles, other=float("-inf"))
                above += tl.sum((others[None, :] > peaks[:, None]).to(tl.int32), 1)
            kth = tl.min(tl.where(above < k, peaks, float("inf")), 0)
            bound = tl.maximum(bound, tl.div_rn(kth, heat))
        first = tl.program_id(1) * TILES_PER_SEGMENT
        for tile in range(first, tl.minimum(first + TILES_PER_SEGMENT, tiles)):
            if tl.div_rn(tl.load(tile_max + row * tiles + tile), heat) >= bound:
                token = tile * TILE + tl.arange(0, TILE)
                x = tl.load(logits + row * stride_logits + token, mask=token < vocab_size, other=float("-inf"))
                x = tl.div_rn(x, tl.zeros([TILE], tl.float32) + heat)
                chosen = (x >= bound) & (x > float("-inf"))
                flags = chosen.to(tl.int32)
                start = tl.atomic_add(counts + row, tl.sum(flags, 0))
                place = start + tl.cumsum(flags, 0) - flags
                tl.store(candidates + row * vocab_size + place, x, mask=chosen)


@triton.jit
def _list_ends(candidates, count, CHUNK: tl.constexpr):
    """(least, largest) key of the list."""
    low = tl.full([], MOST, tl.int32)
    high = tl.full([], LEAST, tl.int32)
    for base in range(0, count, CHUNK):
        index = base + tl.arange(0, CHUNK)
        key = ordered_key(tl.load(candidates + index, mask=index < count, other=0.0))
        low = tl.minimum(low, tl.min(tl.where(index < count, key, MOST), 0))
        high = tl.maximum(high, tl.max(tl.where(index < count, key, LEAST), 0))
    return low, high


@triton.jit
def _measure(x, top, floor, BY_MASS: tl.constexpr):
    """int64 weight of each candidate: its mass where x >= floor, or 1."""
    if BY_MASS:
        return tl.where(x >= floor, (tl.exp(x - top) * UNIT).to(tl.int64), 0)
    else:
        return tl.where(x >= floor, 1, 0).to(tl.int64)


@triton.jit
def _weight_from(candidates, count, top, floor, CHUNK: tl.constexpr, BY_MASS: tl.constexpr):
    weight = tl.full([], 0, tl.int64)
    for base in range(0, count, CHUNK):
        index = base + tl.arange(0, CHUNK)
        x = tl.load(candidates + index, mask=index < count, other=float("-inf"))
        weight += tl.sum(tl.where(index < count, _measure(x, top, floor, BY_MASS), 0), 0)
    return weight


@triton.jit
def _largest_with(candidates, count, low, high, target, top, floor, CHUNK: tl.constexpr, BY_MASS: tl.constexpr):
    """Key of the largest value t of the list in [low, high] such that what is >= t weighs `target` or more; else `low`."""
    while low < high:
        # The average rounded up, without overflow; above low, so every round moves an end.
        middle = (low | high) - ((low ^ high) >> 1)
        weight = tl.full([], 0, tl.int64)
        above = tl.full([], MOST, tl.int32)
        below = tl.full([], LEAST, tl.int32)
        for base in range(0, count, CHUNK):
            index = base + tl.arange(0, CHUNK)
            inside = index < count
            x = tl.load(candidates + index, mask=inside, other=float("-inf"))
            key = ordered_key(x)
            over = inside & (key >= middle)
            weight += tl.sum(tl.where(over, _measure(x, top, floor, BY_MASS), 0), 0)
            above = tl.minimum(above, tl.min(tl.where(over, key, MOST), 0))
            below = tl.maximum(below, tl.max(tl.where(inside & (key < middle), key, LEAST), 0))
        enough = weight >= target
        low = tl.where(enough, above, low)
        high = tl.where(enough, high, below)
    return low


@triton.jit(do_not_specialize=["vocab_size", "segments"])
def sample_search_kernel(
    threshold,
    candidates,
    counts,
    segment_max,
    segment_sum,
    temperature,
    top_k,
    top_p,
    min_p,
    vocab_size,
    segments,
    SEGMENTS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """threshold[row]: the least scaled logit that min-p, then top-k, then top-p keep; -inf keeps all. Grid: (R,)."""
    row = tl.program_id(0).to(tl.int64)
    heat = tl.load(temperature + row)
    k = tl.load(top_k + row)
    p = tl.load(top_p + row)
    least = tl.load(min_p + row)
    k = tl.where(k < vocab_size, k, 0)
    top, total = row_total(segment_max + row * segments, segment_sum + row * segments, SEGMENTS, segments)
    floor = tl.where(least > 0, top + tl.log(tl.maximum(least, TINY)), float("-inf"))
    count = tl.load(counts + row)
    mine = candidates + row * vocab_size
    if (heat > 0) & (count > 0):
        low, high = _list_ends(mine, count, CHUNK)
        if k > 0:
            key = _largest_with(mine, count, low, high, k.to(tl.int64), top, float("-inf"), CHUNK, False)
            floor = tl.maximum(floor, from_key(key))
        if p < 1:
            mass = total.to(tl.float64) * UNIT
            if (k > 0) | (least > 0):
                mass = _weight_from(mine, count, top, floor, CHUNK, True).to(tl.float64)
            target = tl.ceil(mass * p.to(tl.float64)).to(tl.int64)
            key = _largest_with(mine, count, low, high, target, top, floor, CHUNK, True)
            floor = tl.maximum(floor, from_key(key))
    tl.store(threshold + row, floor)
