"""Labels: which pool blocks hold which keys, so that a restarted scheduler can rebuild its index from this worker's Hello."""

from __future__ import annotations

from collections.abc import Iterable


class Labels:
    """Set by Label orders once a block is full; forgotten as soon as the block is given out to be written anew."""

    def __init__(self) -> None:
        self._keys: dict[int, bytes] = {}

    def set(self, blocks: Iterable[int], keys: Iterable[bytes]) -> None:
        self._keys.update(zip(blocks, keys, strict=True))

    def forget(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._keys.pop(block, None)

    def resident(self) -> tuple[list[int], list[bytes]]:
        """Blocks and their keys, in the same order."""
        return list(self._keys), list(self._keys.values())
