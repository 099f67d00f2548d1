"""Labels: which pool blocks hold which keys, so that a restarted scheduler can rebuild its index from this worker's Hello."""

from __future__ import annotations

from collections.abc import Iterable

MOST_RESIDENT = 100_000
"""36 bytes each, in one Hello of at most 4 MB."""


class Labels:
    """Set by Label orders once a block is full; forgotten as soon as the block is given out to be written anew."""

    def __init__(self) -> None:
        self._keys: dict[int, bytes] = {}

    def set(self, blocks: Iterable[int], keys: Iterable[bytes]) -> None:
        for block, key in zip(blocks, keys, strict=False):
            self._keys.pop(block, None)  # a label that is set again becomes the newest
            self._keys[block] = key

    def forget(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._keys.pop(block, None)

    def resident(self, most: int = MOST_RESIDENT) -> tuple[list[int], list[bytes]]:
        """Blocks and their keys, in the same order; beyond `most` the oldest labels are left out."""
        skipped = max(0, len(self._keys) - most)
        return list(self._keys)[skipped:], list(self._keys.values())[skipped:]
