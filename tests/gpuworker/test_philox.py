"""Philox4x32-10 against the known-answer vectors of Random123 (kat_vectors, philox4x32 10 rounds), and its use as uniforms."""

from __future__ import annotations

import numpy as np
import pytest
from octavo_gpuworker.philox import philox4x32, uniforms

ONES = 0xFFFFFFFF
VECTORS = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([ONES] * 4, [ONES] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_known_answers(counter, key, expected) -> None:
    got = philox4x32(np.array(counter, np.uint32), np.array(key, np.uint32))
    assert got.tolist() == expected


def test_known_answers_as_one_batch() -> None:
    counters, keys, expected = (np.array(column, np.uint32) for column in zip(*VECTORS, strict=True))
    assert philox4x32(counters, keys).tolist() == expected.tolist()


def test_uniforms_use_seed_position_and_purpose_whole() -> None:
    """The words of the known vector: counter = (position low, position high, purpose, 0), key = (seed low, seed high)."""
    seed, position = (7 << 40) + 5, (3 << 33) + 9
    words = philox4x32(
        np.array([position & ONES, position >> 32, 2, 0], np.uint32), np.array([seed & ONES, seed >> 32], np.uint32)
    ).astype(np.uint64)
    expected = (float(((int(words[0]) << 32) | int(words[1])) >> 12) + 0.5) * 2.0**-52
    assert uniforms(np.array([seed], np.uint64), np.array([position], np.uint64), purpose=2)[0] == expected


def test_uniforms_do_not_depend_on_their_neighbours() -> None:
    seeds = np.arange(50, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    positions = np.arange(50, dtype=np.uint64)[::-1].copy()
    whole = uniforms(seeds, positions)
    alone = [uniforms(seeds[i : i + 1], positions[i : i + 1])[0] for i in range(50)]
    assert whole.tolist() == alone
    assert len(set(alone)) == 50


def test_uniforms_are_uniform() -> None:
    """Chi-square over 64 cells, neighbouring seeds and positions: 63 degrees of freedom, p > 0.0001 on both sides."""
    values = uniforms(np.repeat(np.arange(200, dtype=np.uint64), 200), np.tile(np.arange(200, dtype=np.uint64), 200))
    assert values.min() > 0 and values.max() < 1
    counts = np.bincount((values * 64).astype(int), minlength=64)
    chi2 = ((counts - 625) ** 2 / 625).sum()
    assert 27 < chi2 < 115
