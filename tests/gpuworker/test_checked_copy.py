"""The copy that hashes on its way: the bytes and the xxh3-64 of xxhash itself, at every length and alignment."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from octavo_gpuworker.checked_copy import checked_copy, plain_copy

LENGTHS = (1, 240, 241, 255, 256, 257, 1023, 1024, 1025, 1088, 2048, 4095, 4096 + 64, 65_537, 368_640)


@pytest.mark.parametrize("copy", [checked_copy(), plain_copy], ids=["here", "plain"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("to_at", "from_at"), [(0, 0), (16, 3), (5, 64)])
def test_bytes_and_checksum(copy, length: int, to_at: int, from_at: int) -> None:
    source = np.random.default_rng(length).integers(0, 256, length + from_at, dtype=np.uint8)[from_at:]
    room = np.full(length + to_at + 1, 7, np.uint8)
    to = room[to_at : to_at + length]
    assert copy(to, source) == xxhash.xxh3_64_intdigest(source.tobytes())
    assert (to == source).all() and (room[:to_at] == 7).all() and room[-1] == 7


def test_one_flipped_bit_shows() -> None:
    copy, source = checked_copy(), np.zeros(100_000, np.uint8)
    to = np.empty_like(source)
    whole = copy(to, source)
    for at in (0, 63, 64, 50_001, 99_999):
        source[at] ^= 4
        assert copy(to, source) != whole
        source[at] ^= 4


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="300"):
        checked_copy()(np.zeros(299, np.uint8), np.zeros(300, np.uint8))
