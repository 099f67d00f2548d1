"""Copies and the xxh3-64 of what was copied: in one pass by the native library where there is one, else one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from octavo_gpuworker.native.library import NativeUnavailable, load_library

Bytes = NDArray[np.uint8]
Addresses = NDArray[np.uint64]
CheckedCopy = Callable[[Sequence[Bytes], Sequence[Bytes]], list[int]]
"""(to, from), pairs of one length, contiguous, not overlapping -> xxh3-64 of the bytes that each of `to` has now."""
RowCopy = Callable[["Rows", Sequence[int], "Rows", Sequence[int], int], list[int]]
SHORT_BYTES: Final = 240
"""Up to here xxh3 is another function, which the library leaves to xxhash."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Evenly spaced arrays of `size` bytes each: where number n lies is arithmetic, and asks no array."""

    first: Bytes
    """Kept, so that the memory is."""
    address: int
    stride: int
    count: int
    size: int

    @classmethod
    def of(cls, at: Callable[[int], Bytes], count: int) -> Self | None:
        """`at(n)` for n below `count`; None when they are not evenly spaced, contiguous, of one length and writable."""
        arrays = [at(0), at(min(1, count - 1)), at(count // 2), at(count - 1)]
        first, second, middle, last = (int(array.ctypes.data) for array in arrays)
        stride = second - first if count > 1 else len(arrays[0])
        even = middle == first + stride * (count // 2) and last == first + stride * (count - 1)
        fit = all(
            array.flags.c_contiguous and array.flags.writeable and len(array) == len(arrays[0]) for array in arrays
        )
        return cls(arrays[0], first, stride, count, len(arrays[0])) if even and fit else None

    def addresses(self, numbers: Sequence[int]) -> Addresses:
        """Of these rows. Raises IndexError outside [0, count)."""
        found = np.fromiter(numbers, np.int64, len(numbers))
        if len(found) and (found.min() < 0 or found.max() >= self.count):
            raise IndexError(f"row {found.min()} or {found.max()} is outside [0, {self.count})")
        return (found * self.stride + self.address).astype(np.uint64)


def checked_copy() -> CheckedCopy:
    """The fastest there is here, without building anything; what it computes is the same everywhere."""
    native = _native()
    return plain_copy if native is None else lambda to, source: _native_copy(native, to, source)


def row_copy() -> RowCopy | None:
    """`checked_copy` of rows, (to, their numbers, from, their numbers, bytes of each); None without the native library.

    Raises IndexError for a number out of range, ValueError for other lengths.
    """
    native = _native()
    return None if native is None else lambda *given: _copy_rows(native, *given)


def plain_copy(to: Sequence[Bytes], source: Sequence[Bytes]) -> list[int]:
    """Copies each, then reads the copy again."""
    sums = []
    for room, own in zip(to, source, strict=True):
        np.copyto(room, own)
        sums.append(xxhash.xxh3_64_intdigest(room.data))
    return sums


def _native() -> Any:
    try:
        return load_library(may_build=False).handle.octavo_copy_xxh3
    except NativeUnavailable:
        return None


def _copy_rows(
    native: Any, to: Rows, to_at: Sequence[int], source: Rows, source_at: Sequence[int], size: int
) -> list[int]:
    if len(to_at) != len(source_at) or not SHORT_BYTES < size <= min(to.size, source.size):
        raise ValueError(
            f"{len(source_at)} rows of {source.size} bytes cannot be copied over {len(to_at)} of {to.size}"
        )
    return _called(native, to.addresses(to_at), source.addresses(source_at), size)


def _native_copy(native: Any, to: Sequence[Bytes], source: Sequence[Bytes]) -> list[int]:
    """One call for all: finding an address in Python takes a tenth of copying a block."""
    sizes = {len(array) for array in (*to, *source)}
    if len(to) != len(source) or len(sizes) > 1:
        raise ValueError(f"arrays of {sorted(sizes)} bytes cannot be copied over each other")
    if not sizes or (size := sizes.pop()) <= SHORT_BYTES:
        return plain_copy(to, source)
    return _called(native, _addresses(to, writes=True), _addresses(source, writes=False), size)


def _called(native: Any, targets: Addresses, sources: Addresses, size: int) -> list[int]:
    sums = np.empty(len(targets), np.uint64)
    native(targets.ctypes.data, sources.ctypes.data, size, len(targets), sums.ctypes.data)
    return [int(value) for value in sums]


def _addresses(arrays: Sequence[Bytes], *, writes: bool) -> Addresses:
    found = np.empty(len(arrays), np.uint64)
    for index, array in enumerate(arrays):
        if not array.flags.c_contiguous or (writes and not array.flags.writeable):
            raise ValueError(f"array {index} is not contiguous, or cannot be written")
        found[index] = array.__array_interface__["data"][0]
    return found
