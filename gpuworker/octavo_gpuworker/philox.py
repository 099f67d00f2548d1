"""Random numbers as a pure function of (seed, position, purpose, token): Philox4x64-10, a counter-based generator.

Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3" (SC'11), in numpy's implementation. The key is
(seed, purpose), the 256-bit counter starts at (0, position, 0, 0); token t takes the t-th 32-bit draw. Every token of the
vocabulary has noise of its own, so that a draw is the argmax of logit + Gumbel noise: unlike an inverted CDF, whose
answer moves with every probability before it, it changes only where two candidates tie within the logits' rounding.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np
from numpy.typing import NDArray

PURPOSE_SAMPLE = 0
"""The draw of a token; later purposes (drafts, beams) get numbers of their own."""
_HALF_STEP = np.float32(2.0**-25)
LOG_POLYNOMIAL = tuple(
    np.float32(value)
    for value in (
        7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
        -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
    )
)  # fmt: skip


def uniforms(seed: int, position: int, count: int, purpose: int = PURPOSE_SAMPLE) -> NDArray[np.float32]:
    """[count] float32 in (0, 1), 24 random bits each, for seed in [0, 2**64) and position >= 0."""
    key = np.array([seed, purpose], dtype=np.uint64)
    counter = np.array([0, position, 0, 0], dtype=np.uint64)
    drawn = np.random.Generator(np.random.Philox(key=key, counter=counter)).random(count, dtype=np.float32)
    np.maximum(drawn, _HALF_STEP, out=drawn)  # 0 would be noise of minus infinity; adding would round the largest to 1
    return drawn


def gumbel(seeds: Rows[int], positions: Rows[int], vocab_size: int) -> NDArray[np.float32]:
    """[R, vocab_size] float32 Gumbel noise, one row per (seed, position)."""
    noise = np.empty((len(seeds), vocab_size), dtype=np.float32)
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        noise[row] = uniforms(seed, position, vocab_size)
    return _gumbel_of(noise)


def gumbel_at(seeds: Rows[int], positions: Rows[int], ids: NDArray[np.int64], vocab_size: int) -> NDArray[np.float32]:
    """The same noise at ids [R, K] only: the two logarithms of a whole vocabulary cost more than its draws."""
    noise = np.empty(ids.shape, dtype=np.float32)
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        noise[row] = uniforms(seed, position, vocab_size)[ids[row]]
    return _gumbel_of(noise)


def rough_gumbel(seeds: Rows[int], positions: Rows[int], vocab_size: int) -> NDArray[np.float32]:
    """`gumbel` by numpy's logarithm, sixty times as fast and within 1e-5 of it: to find the few tokens that could win."""
    noise = np.empty((len(seeds), vocab_size), dtype=np.float32)
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        noise[row] = uniforms(seed, position, vocab_size)
    for _ in range(2):
        np.log(noise, out=noise)
        np.negative(noise, out=noise)
    return noise


def _gumbel_of(drawn: NDArray[np.float32]) -> NDArray[np.float32]:
    """-log(-log(u))."""
    return -log_exact(-log_exact(drawn))


def log_exact(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """log of normal x > 0, within 2 units in the last place: Cephes' logf in separate float32 multiplications and additions.

    numpy's own differs between processors, and a token must not; native/csrc/exact_math.h follows the same recipe.
    """
    m, exponent = np.frexp(x)
    small = m < np.float32(0.707106781186547524)
    e = np.where(small, exponent - 1, exponent).astype(np.float32)
    m = np.where(small, (m + m) - np.float32(1), m - np.float32(1))
    z = m * m
    p = np.full_like(m, LOG_POLYNOMIAL[0])
    for coefficient in LOG_POLYNOMIAL[1:]:
        p *= m
        p += coefficient
    p *= m
    p *= z
    p += e * np.float32(-2.12194440e-4)
    p -= np.float32(0.5) * z
    result: NDArray[np.float32] = (m + p) + e * np.float32(0.693359375)
    return result
