"""A simulated kvstore of one host: keys in order of their last use, bounded, with the numbered events of a real one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class SimulatedStore:
    """Holds block keys only. `changes` are (key, removed) that the scheduler has not been told, from `first_number` on."""

    __slots__ = ("_capacity", "_held", "changes", "connection", "first_number", "store_id")

    def __init__(self, store_id: str, connection: int, capacity_blocks: int) -> None:
        self.store_id = store_id
        self.connection = connection
        self._capacity = capacity_blocks
        self._held: OrderedDict[bytes, None] = OrderedDict()
        self.changes: list[tuple[bytes, bool]] = []
        self.first_number = 1

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, keys: Sequence[bytes]) -> None:
        """Holds these from before the run: the scheduler learns of them by the inventory."""
        self._held.update(dict.fromkeys(keys))

    def keys(self) -> list[bytes]:
        """All that is held, the least recently used first."""
        return list(self._held)

    def held_run(self, keys: Sequence[bytes]) -> int:
        """How many leading keys are held; they count as used."""
        for count, key in enumerate(keys):
            if key not in self._held:
                return count
            self._held.move_to_end(key)
        return len(keys)

    def put(self, keys: Sequence[bytes]) -> None:
        """Stores blocks; the least recently used make room."""
        for key in keys:
            if key not in self._held:
                self.changes.append((key, False))
            self._held[key] = None
            self._held.move_to_end(key)
        while len(self._held) > self._capacity:
            self.changes.append((self._held.popitem(last=False)[0], True))

    def take_changes(self) -> tuple[int, list[tuple[bytes, bool]]]:
        """(number of the first, the changes), which are then told."""
        number, changes = self.first_number, self.changes
        self.first_number += len(changes)
        self.changes = []
        return number, changes
