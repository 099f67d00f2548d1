"""A copy and the xxh3-64 of what was copied: in one pass by the native library where there is one, else one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from octavo_gpuworker.native.library import NativeUnavailable, load_library

Bytes = NDArray[np.uint8]
CheckedCopy = Callable[[Bytes, Bytes], int]
"""(to, from) of equal length, contiguous, not overlapping -> xxh3-64 of the bytes that `to` has now."""
SHORT_BYTES: Final = 240
"""Up to here xxh3 is another function, which the library leaves to xxhash."""


def checked_copy() -> CheckedCopy:
    """The fastest there is here; what it computes is the same everywhere."""
    try:
        native = load_library().handle.octavo_copy_xxh3
    except NativeUnavailable:
        return plain_copy
    return lambda to, source: _native_copy(native, to, source)


def plain_copy(to: Bytes, source: Bytes) -> int:
    """Copies, then reads the copy again."""
    np.copyto(to, source)
    return xxhash.xxh3_64_intdigest(to.data)


def _native_copy(native: Any, to: Bytes, source: Bytes) -> int:
    size = len(source)
    if size <= SHORT_BYTES:
        return plain_copy(to, source)
    if len(to) != size or not (to.flags.c_contiguous and to.flags.writeable and source.flags.c_contiguous):
        raise ValueError(f"{size} contiguous bytes cannot be copied over {len(to)}")
    return int(native(to.ctypes.data, source.ctypes.data, size))
