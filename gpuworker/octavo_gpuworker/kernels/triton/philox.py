"""Philox4x64-10 and Gumbel noise inside a kernel: bit for bit the uniforms of `octavo_gpuworker.philox`.

Salmon, Moraes, Dror, Shaw (SC'11). One counter gives eight draws of 32 bits, numpy's order: four words, each low half first.
"""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_gpuworker.philox import PURPOSE_SAMPLE

PURPOSE: tl.constexpr = tl.constexpr(PURPOSE_SAMPLE)
MULTIPLY_0: tl.constexpr = tl.constexpr(0xD2E7470EE14C6C93)
MULTIPLY_1: tl.constexpr = tl.constexpr(0xCA5A826395121157)
WEYL_0: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15)
WEYL_1: tl.constexpr = tl.constexpr(0xBB67AE8584CAA73B)


@triton.jit
def philox_words(seed, position, index):
    """seed, position int64 scalars; index [N] int64 -> four [N] uint64: the words of counter (index + 1, position, 0, 0)."""
    key_0 = seed.to(tl.uint64, bitcast=True)
    key_1 = tl.full([], PURPOSE, tl.uint64)
    zero = index.to(tl.uint64) * tl.full([], 0, tl.uint64)
    # numpy steps the counter before it draws.
    word_0 = index.to(tl.uint64) + tl.full([], 1, tl.uint64)
    word_1 = zero + position.to(tl.uint64, bitcast=True)
    word_2 = zero
    word_3 = zero
    multiply_0 = tl.full([], MULTIPLY_0, tl.uint64)
    multiply_1 = tl.full([], MULTIPLY_1, tl.uint64)
    for _ in tl.static_range(10):
        high_0 = tl.umulhi(word_0, zero + multiply_0)
        low_0 = word_0 * multiply_0
        high_1 = tl.umulhi(word_2, zero + multiply_1)
        low_1 = word_2 * multiply_1
        word_0 = high_1 ^ word_1 ^ key_0
        word_2 = high_0 ^ word_3 ^ key_1
        word_1 = low_1
        word_3 = low_0
        key_0 = key_0 + tl.full([], WEYL_0, tl.uint64)
        key_1 = key_1 + tl.full([], WEYL_1, tl.uint64)
    return word_0, word_1, word_2, word_3


@triton.jit
def _halves(word):
    return (word & 0xFFFFFFFF).to(tl.uint32), (word >> 32).to(tl.uint32)


@triton.jit
def uniform(seed, position, start, COUNT: tl.constexpr):
    """[COUNT] float32 in (0, 1) of tokens start .. start + COUNT; both multiples of 8."""
    index = (tl.arange(0, COUNT // 8) + start // 8).to(tl.int64)
    word_0, word_1, word_2, word_3 = philox_words(seed, position, index)
    low_0, high_0 = _halves(word_0)
    low_1, high_1 = _halves(word_1)
    low_2, high_2 = _halves(word_2)
    low_3, high_3 = _halves(word_3)
    # Token 8 i + 2 w + h is half h of word w: joins add the bits of w, high first, then h.
    low = tl.join(tl.join(low_0, low_2), tl.join(low_1, low_3))
    high = tl.join(tl.join(high_0, high_2), tl.join(high_1, high_3))
    bits = tl.reshape(tl.join(low, high), [COUNT])
    drawn = (bits >> 8).to(tl.float32) * 5.9604644775390625e-08
    return tl.maximum(drawn, 2.98023223876953125e-08)


@triton.jit
def log_precise(x):
    """Natural logarithm of normal x > 0 within 1 ulp (fdlibm's logf; the GPU's own is absolute, not relative, near 1)."""
    bits = x.to(tl.int32, bitcast=True) + (0x3F800000 - 0x3F3504F3)
    exponent = ((bits >> 23) - 127).to(tl.float32)
    mantissa = ((bits & 0x007FFFFF) + 0x3F3504F3).to(tl.float32, bitcast=True)
    f = mantissa - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    remainder = z * (0.66666662693 + w * 0.28498786688) + w * (0.40000972152 + w * 0.24279078841)
    half_square = 0.5 * f * f
    return s * (half_square + remainder) + exponent * 9.0580006145e-06 - half_square + f + exponent * 6.9313812256e-01


@triton.jit
def gumbel_noise(seed, position, start, COUNT: tl.constexpr):
    """[COUNT] float32: -log(-log(u)). The noise that decides has u near 1, where only a precise inner logarithm keeps it."""
    return -tl.log(-log_precise(uniform(seed, position, start, COUNT)))


__all__ = ["gumbel_noise", "log_precise", "philox_words", "uniform"]
