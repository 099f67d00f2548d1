"""A chaos kvstore in pure Python: it keeps contents by key, loses some, and says what came and went."""

from __future__ import annotations

from random import Random

from octavo_scheduler.orders import LoadSource


class ChaosStore:
    """A kvstore that evicts, loses events, and serves partially. `events` are what it would send to the scheduler."""

    def __init__(self, rng: Random, store_id: str = "host") -> None:
        self.rng = rng
        self.store_id = store_id
        self.held: dict[bytes, list[int]] = {}
        self.parents: dict[bytes, bytes] = {}
        self.next_number = 1
        self.events: list[tuple[int, bytes, bool]] = []
        self.alive = True
        self.peers: dict[str, ChaosStore] = {}
        self.fetched = 0

    def fetch(self, key: bytes, sources: list[LoadSource], index: int) -> list[int] | None:
        """From the first peer that is named for the index, lives and holds the key."""
        for source in sources:
            peer = self.peers.get(source.store_id)
            if source.first <= index < source.first + source.count and peer is not None and peer.alive:
                content = peer.held.get(key)
                if content is not None:
                    self.fetched += 1
                    self.put(key, content)
                    return content
        return None

    def put(self, key: bytes, content: list[int], parent: bytes = b"") -> None:
        self.parents[key] = parent
        known = self.held.get(key)
        assert known is None or known == content, "one key, two contents"
        if known is None:
            self.held[key] = list(content)
            self._event(key, False)

    def forget(self, keys: list[bytes], namespace: bytes) -> None:
        """The blocks of these keys and all below them; of a namespace: everything, there is one tenant."""
        doomed = set(self.held) if namespace else set(keys)
        while more := {key for key in self.held if self.parents[key] in doomed} - doomed:
            doomed |= more
        for key in [key for key in self.held if key in doomed]:
            del self.held[key]
            self._event(key, True)

    def evict_some(self) -> None:
        for key in [key for key in self.held if self.rng.random() < 0.1]:
            del self.held[key]
            self._event(key, True)

    def _event(self, key: bytes, removed: bool) -> None:
        self.events.append((self.next_number, key, removed))
        self.next_number += 1
