"""Philox4x32-10, a counter-based generator: random numbers are a pure function of (seed, position, purpose).

Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3" (SC'11). Vectorised over rows with numpy, so a
batch of any composition draws what each sequence would draw alone, on any worker, after any preemption.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
ROUNDS = 10

PURPOSE_SAMPLE = 0
"""The draw of a token; later purposes (drafts, beams) get numbers of their own."""


def philox4x32(counter: NDArray[np.uint32], key: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """counter [..., 4] and key [..., 2] of uint32 -> [..., 4] uint32: ten rounds."""
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = key[..., 0].astype(np.uint64), key[..., 1].astype(np.uint64)
    for round_index in range(ROUNDS):
        if round_index:
            k0, k1 = (k0 + np.uint64(_W0)) & _LOW, (k1 + np.uint64(_W1)) & _LOW
        product0, product1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (
            (product1 >> _SHIFT) ^ c1 ^ k0,
            product1 & _LOW,
            (product0 >> _SHIFT) ^ c3 ^ k1,
            product0 & _LOW,
        )
    return np.stack((c0, c1, c2, c3), axis=-1).astype(np.uint32)


def uniforms(
    seeds: NDArray[np.uint64], positions: NDArray[np.uint64], purpose: int = PURPOSE_SAMPLE
) -> NDArray[np.float64]:
    """seeds [R] and positions [R] of uint64 -> [R] float64 in (0, 1), with 52 random bits."""
    counter = np.empty((len(seeds), 4), dtype=np.uint32)
    counter[:, 0] = positions & _LOW
    counter[:, 1] = positions >> _SHIFT
    counter[:, 2] = purpose
    counter[:, 3] = 0
    key = np.empty((len(seeds), 2), dtype=np.uint32)
    key[:, 0] = seeds & _LOW
    key[:, 1] = seeds >> _SHIFT
    words = philox4x32(counter, key).astype(np.uint64)
    mantissa = ((words[:, 0] << _SHIFT) | words[:, 1]) >> np.uint64(12)
    uniform: NDArray[np.float64] = (mantissa.astype(np.float64) + 0.5) * 2.0**-52
    return uniform
