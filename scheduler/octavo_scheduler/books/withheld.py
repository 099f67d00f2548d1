"""Blocks that were not written behind, as a trial: later prompts that lack them show what offloading is worth."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

MOST = 8192


class Withheld:
    """Keys that a kvstore would hold, had their request not been in the trial; the latest ones."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def add(self, keys: Iterable[bytes]) -> None:
        """A request in the trial has left these in the pool alone."""
        for key in keys:
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > MOST:
            self._keys.popitem(last=False)

    def discard(self, key: bytes) -> None:
        """Somebody else has brought it to a kvstore, or is about to."""
        self._keys.pop(key, None)

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)
