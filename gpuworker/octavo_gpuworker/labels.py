"""Labels: which pool blocks hold which keys, so that a restarted scheduler can rebuild its index from this worker's Hello."""

from __future__ import annotations

from collections.abc import Iterable

MOST_RESIDENT = 100_000
"""40 bytes each, in one Hello of at most 4 MB."""
_HEAD = bytes(32)


class Labels:
    """Set by Label orders once a block is full; forgotten as soon as the block is given out to be written anew."""

    def __init__(self) -> None:
        self._labels: dict[int, tuple[bytes, bytes]] = {}  # block -> its key, what that is chained from

    def set(self, blocks: Iterable[int], keys: Iterable[bytes], parents: Iterable[bytes]) -> None:
        """`parents`: 32-byte keys, zeros for the head of a chain."""
        for block, key, parent in zip(blocks, keys, parents, strict=False):
            self._labels.pop(block, None)  # a label that is set again becomes the newest
            self._labels[block] = (key, parent)

    def forget(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._labels.pop(block, None)

    def resident(self, most: int = MOST_RESIDENT) -> tuple[list[int], list[bytes], list[int]]:
        """Blocks, their keys, and the place of each one's parent in these lists: from 1, 0 for a chain's head.

        One whose parent is not resident names itself. Of two blocks with one key the newer counts; beyond `most` the
        oldest labels are left out.
        """
        newest = {key: (block, parent) for block, (key, parent) in self._labels.items()}
        kept = list(newest.items())[max(0, len(newest) - most) :]
        place = {key: at for at, (key, _held) in enumerate(kept, 1)}
        parents = [0 if parent == _HEAD else place.get(parent, place[key]) for key, (_block, parent) in kept]
        return [block for _key, (block, _parent) in kept], list(place), parents
