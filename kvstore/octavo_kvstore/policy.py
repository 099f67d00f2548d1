"""Which block goes first: the least recently used one that no held block continues.

A chain of prefix blocks is useful from its head on, so a parent outlives its children (the leaf-first order of radix
caches, Zheng et al., SGLang, 2024). Pure: no lock, no clock; the owner serializes calls.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable


class LeafFirstLru:
    """The eviction order of a tier. `add`, `touch` and `remove` are O(log n); `pop_victim` amortized O(log n)."""

    def __init__(self) -> None:
        self._used: dict[bytes, int] = {}
        self._parents: dict[bytes, bytes] = {}
        self._children: dict[bytes, int] = {}
        self._leaves: list[tuple[int, bytes]] = []  # lazy heap: an entry counts only if it still has its key's last use
        self._uses = 0

    def __len__(self) -> int:
        return len(self._used)

    def add(self, key: bytes, parent: bytes) -> None:
        """Adds a key as just used; an empty parent begins a chain. The key must not be there."""
        if key in self._used:
            raise ValueError("key is already in the order")
        self._parents[key] = parent
        if parent:
            self._children[parent] = self._children.get(parent, 0) + 1
        self.touch(key, added=True)

    def touch(self, key: bytes, *, added: bool = False) -> None:
        """Marks a key as just used; an unknown key is a no-op."""
        if not added and key not in self._used:
            return
        self._uses += 1
        self._used[key] = self._uses
        self._push(key)

    def remove(self, key: bytes) -> None:
        """Takes a key out; an unknown key is a no-op."""
        if self._used.pop(key, None) is None:
            return
        parent = self._parents.pop(key)
        if not parent:
            return
        self._children[parent] -= 1
        if not self._children[parent]:
            del self._children[parent]
            if parent in self._used:
                self._push(parent)

    def pop_victim(self, is_pinned: Callable[[bytes], bool]) -> bytes | None:
        """Takes out and returns the next key to evict, or None when every leaf is pinned or nothing is held."""
        passed: list[tuple[int, bytes]] = []
        victim = None
        while self._leaves and victim is None:
            entry = heapq.heappop(self._leaves)
            used, key = entry
            if self._used.get(key) != used or key in self._children:
                continue
            if is_pinned(key):
                passed.append(entry)
            else:
                victim = key
        for entry in passed:
            heapq.heappush(self._leaves, entry)
        if victim is not None:
            self.remove(victim)
        return victim

    def _push(self, key: bytes) -> None:
        if key in self._children:
            return
        heapq.heappush(self._leaves, (self._used[key], key))
        if len(self._leaves) > 64 + 4 * len(self._used):  # stale entries of keys used again and again
            self._leaves = [(used, held) for held, used in self._used.items() if held not in self._children]
            heapq.heapify(self._leaves)
