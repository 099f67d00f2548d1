"""What was said of each key: which tiers hold it. The truth is in the tiers; this says every change of it once, to everybody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from octavo_kvstore.events import EventLog
from octavo_kvstore.watch import TierChange, Watcher


@dataclass(slots=True)
class _Said:
    parent: bytes
    tiers: tuple[str, ...]


class Holdings:
    """Thread-safe. `tiers_of` looks where a key is right now, fastest first; `parent_of` is asked once for a key that is new."""

    def __init__(self, tiers_of: Callable[[bytes], tuple[str, ...]], parent_of: Callable[[bytes], bytes]) -> None:
        self._tiers_of = tiers_of
        self._parent_of = parent_of
        self._lock = threading.Lock()
        self._said: dict[bytes, _Said] = {}
        self._watchers: list[Watcher] = []
        self.events = EventLog()

    def __contains__(self, key: bytes) -> bool:
        return key in self._said

    def __len__(self) -> int:
        return len(self._said)

    def adopt(self, keys: Iterable[bytes]) -> None:
        """What was there before anybody followed."""
        with self._lock:
            self._said.update((key, _Said(self._parent_of(key), self._tiers_of(key))) for key in keys)

    def inventory(self) -> tuple[int, list[bytes]]:
        """(number of the last event, every key held as of that event)."""
        with self._lock:
            return self.events.number, list(self._said)

    def children(self) -> dict[bytes, list[bytes]]:
        """The keys that are chained from each; those of no parent under the empty key."""
        below: dict[bytes, list[bytes]] = {}
        with self._lock:
            for key, said in self._said.items():
                below.setdefault(said.parent, []).append(key)
        return below

    def reconcile(self, keys: Iterable[bytes]) -> None:
        """Compares what is held with what was said, and says the difference. Called after anything that may change it.

        It looks at the tiers themselves under one lock, so the last caller after a change always says the truth.
        """
        with self._lock:
            for key in keys:
                tiers = self._tiers_of(key)
                said = self._said.get(key)
                before = said.tiers if said is not None else ()
                if tiers != before:
                    self._say(key, said.parent if said is not None else self._parent_of(key), before, tiers)

    def _say(self, key: bytes, parent: bytes, before: tuple[str, ...], tiers: tuple[str, ...]) -> None:
        if tiers:
            self._said[key] = _Said(parent, tiers)
        else:
            del self._said[key]
        if self._watchers:
            changes = [TierChange(key, parent, tier, removed=False) for tier in tiers if tier not in before]
            changes += [TierChange(key, parent, tier, removed=True) for tier in before if tier not in tiers]
            for watcher in self._watchers:
                watcher.tell(changes)
        if bool(tiers) != bool(before):
            self.events.append(key, removed=not tiers, tier=tiers[0] if tiers else "")

    def watch(self, on_change: Callable[[], None]) -> Watcher:
        """A follower of every tier's changes; it begins with `inventory_for`. Ends with `unwatch`."""
        watcher = Watcher(on_change)
        with self._lock:
            self._watchers = [*self._watchers, watcher]
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        with self._lock:
            self._watchers = [other for other in self._watchers if other is not watcher]

    def inventory_for(self, watcher: Watcher) -> list[TierChange]:
        """Everything held now, as changes; what the watcher is told from here on follows it without a gap."""
        with self._lock:
            watcher.begin()
            return [
                TierChange(key, said.parent, tier, removed=False)
                for key, said in self._said.items()
                for tier in said.tiers
            ]
