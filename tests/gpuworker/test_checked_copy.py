"""The copy that hashes on its way: the bytes and the xxh3-64 of xxhash itself, at every length and alignment."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
import xxhash
from octavo_gpuworker.checked_copy import Rows, checked_copy, plain_copy, row_copy
from octavo_gpuworker.native import library

with contextlib.suppress(library.NativeUnavailable):
    library.load_library()  # so that the native copy is the one that is tested, where there can be one
LENGTHS = (1, 240, 241, 255, 256, 257, 1023, 1024, 1025, 1088, 2048, 4095, 4096 + 64, 65_537, 368_640)


@pytest.mark.parametrize("copy", [checked_copy(), plain_copy], ids=["here", "plain"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("to_at", "from_at"), [(0, 0), (16, 3), (5, 64)])
def test_bytes_and_checksum(copy, length: int, to_at: int, from_at: int) -> None:
    source = np.random.default_rng(length).integers(0, 256, length + from_at, dtype=np.uint8)[from_at:]
    room = np.full(length + to_at + 1, 7, np.uint8)
    to = room[to_at : to_at + length]
    assert copy([to], [source]) == [xxhash.xxh3_64_intdigest(source.tobytes())]
    assert (to == source).all() and (room[:to_at] == 7).all() and room[-1] == 7


def test_without_a_library_nothing_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "library_name", lambda: "liboctavo_native-none.so")
    monkeypatch.setattr(library, "default_cache", lambda: tmp_path)
    monkeypatch.setattr(library, "build", lambda folder: pytest.fail("it was built"))
    assert checked_copy() is plain_copy


def test_one_flipped_bit_shows() -> None:
    copy, source = checked_copy(), np.zeros(100_000, np.uint8)
    to = np.empty_like(source)
    whole = copy([to], [source])
    for at in (0, 63, 64, 50_001, 99_999):
        source[at] ^= 4
        assert copy([to], [source]) != whole
        source[at] ^= 4


def test_many_at_once() -> None:
    source = np.random.default_rng(1).integers(0, 256, (5, 5000), dtype=np.uint8)
    to = np.zeros_like(source)
    assert checked_copy()(list(to), list(source)) == [xxhash.xxh3_64_intdigest(row.tobytes()) for row in source]
    assert (to == source).all() and checked_copy()([], []) == []


def test_what_does_not_fit_is_refused() -> None:
    copy = checked_copy()
    with pytest.raises(ValueError, match="299"):
        copy([np.zeros(299, np.uint8)], [np.zeros(300, np.uint8)])
    if copy is not plain_copy:
        with pytest.raises(ValueError, match="array 0"):
            copy([np.zeros(600, np.uint8)[::2]], [np.zeros(300, np.uint8)])


def rows_of(array: np.ndarray) -> Rows | None:
    return Rows.of(lambda number: array[number], len(array))


def test_rows_are_copied_by_their_numbers() -> None:
    copy = row_copy()
    if copy is None:
        pytest.skip("no native library here")
    source = np.random.default_rng(2).integers(0, 256, (7, 4096), dtype=np.uint8)
    room = np.zeros((5, 3000), np.uint8)
    to, held = rows_of(room), rows_of(source)
    assert to is not None and held is not None
    sums = copy(to, [3, 1, 4], held, [0, 6, 2], 2999)
    assert sums == [xxhash.xxh3_64_intdigest(source[number, :2999].tobytes()) for number in (0, 6, 2)]
    assert all((room[a, :2999] == source[b, :2999]).all() for a, b in ((3, 0), (1, 6), (4, 2)))
    assert not room[[0, 2]].any() and not room[:, 2999].any() and copy(to, [], held, [], 2999) == []
    for targets, numbers in (([5], [0]), ([-1], [0]), ([0], [7])):
        with pytest.raises(IndexError, match="outside"):
            copy(to, targets, held, numbers, 2999)
    for targets, size in (([0, 1], 2999), ([0], 3001), ([0], 240)):
        with pytest.raises(ValueError, match="cannot be copied"):
            copy(to, targets, held, [0], size)


def test_arrays_that_are_not_evenly_spaced_are_no_rows() -> None:
    memory = np.zeros(1000, np.uint8)
    assert Rows.of(lambda number: memory[number * number * 10 :][:10], 5) is None
    assert Rows.of(lambda number: memory[number * 20 :][:20:2], 5) is None
    assert rows_of(memory.reshape(1, 1000)) is not None
    memory.flags.writeable = False
    assert rows_of(memory.reshape(10, 100)) is None
