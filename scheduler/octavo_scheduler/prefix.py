"""The prefix index of one worker: content key -> block.

Keys are chained (`octavo.keys`), so equal keys mean equal beginnings and a match is a walk along the request's keys.
A block enters only when it lies wholly below `computed_len`; two sequences that compute the same key at once leave
one block in the index and the other private.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo_scheduler.blocks import BlockPool


class PrefixIndex:
    """Owns the key map and, through the pool, the index's hold on each block. `on_forget(block)` follows an eviction."""

    __slots__ = ("_key_of", "_on_forget", "block_of", "pool")

    def __init__(self, num_blocks: int, on_forget: Callable[[int], None] = lambda block: None) -> None:
        self.pool = BlockPool(num_blocks, self._evicted)
        self._on_forget = on_forget
        self.block_of: dict[bytes, int] = {}  # others only look keys up in it
        self._key_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self.block_of)

    def match(self, keys: Sequence[bytes], limit: int) -> list[int]:
        """Blocks of the longest indexed run of `keys`, `limit` at most. Takes no reference: share() in this event."""
        blocks: list[int] = []
        for key in keys[:limit]:
            block = self.block_of.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def match_len(self, keys: Sequence[bytes], limit: int) -> int:
        """How many leading keys are indexed, `limit` at most."""
        count = 0
        for key in keys[:limit]:
            if key not in self.block_of:
                break
            count += 1
        return count

    def add(self, key: bytes, block: int) -> bool:
        """Indexes a computed full block; False when the key is indexed already (the block stays private)."""
        if key in self.block_of or block in self._key_of:
            return False
        self.pool.hold_index(block)
        self.block_of[key] = block
        self._key_of[block] = key
        return True

    def key_of(self, block: int) -> bytes | None:
        """The key under which `block` is indexed."""
        return self._key_of.get(block)

    def __contains__(self, key: bytes) -> bool:
        return key in self.block_of

    def forget(self, block: int) -> None:
        """Drops one entry and the index's hold."""
        key = self._key_of.pop(block)
        del self.block_of[key]
        self.pool.drop_index(block)

    def _evicted(self, block: int) -> None:
        key = self._key_of.pop(block)
        del self.block_of[key]
        self._on_forget(block)

    def check_integrity(self) -> list[str]:
        """The pool's check, and both maps agree."""
        wrong = self.pool.check_integrity()
        if {block: key for key, block in self.block_of.items()} != self._key_of:
            wrong.append("the index's two maps differ")
        return wrong
