"""Who has which slots of the arena: the clients (workers of this host), what they hold for a lease, and what the dead leave behind."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo_kvstore.arena_file import ArenaFile, ArenaFolder, is_dead
from octavo_kvstore.block import Block
from octavo_kvstore.read_ways import ReadWays
from octavo_kvstore.store import Store
from octavo_kvstore.tier import Put
from octavo_kvstore.tiers.arena import ArenaTier, SlotRef

log = logging.getLogger("octavo.kvstore.arena")


@dataclass(frozen=True, slots=True)
class Desk:
    """What a client is told of the arena."""

    client: int
    file: ArenaFile


class ArenaDesk:
    """Thread-safe."""

    def __init__(self, store: Store, arena: ArenaTier, folder: ArenaFolder) -> None:
        self._store = store
        self._arena = arena
        self.folder = folder
        self._lock = threading.Lock()
        self._clients: dict[int, Path] = {}
        self._leases: dict[int, tuple[int, list[int]]] = {}  # lease -> client, slots lent for it
        self._next = int.from_bytes(os.urandom(5), "little") + 1  # as leases, of this life alone
        self.ways = ReadWays()
        """Which way of reading runs of blocks into slots is the faster one here."""
        self.reclaimed = 0
        """Slots that came back from dead clients."""

    def attach(self, block_bytes: int, lock_name: str) -> Desk | None:
        """Takes a client on; None when there is no arena for its blocks.

        Raises ValueError for a lock file that is none, or that nobody holds.
        """
        path = self.folder.lock_file(lock_name)
        if path is None or is_dead(path):
            raise ValueError(
                f"lock_name: {lock_name[:80]!r} must be a locked file octavo-lease-* in {self.folder.path}"
            )
        self.reap()
        try:
            file = self._arena.lay_out(block_bytes, anew=not self._clients)
        except OSError as error:
            log.warning("no arena for blocks of %d bytes: %s", block_bytes, error)
            return None
        if file is None:
            return None
        with self._lock:
            client, self._next = self._next, self._next + 1
            self._clients[client] = path
        return Desk(client, file)

    def knows(self, client: int) -> bool:
        """False for one that attached to another life of this store, or was found dead: it must attach again."""
        return client in self._clients

    def begin_lease(self, client: int, lease: int) -> None:
        """What is lent for this lease from now on comes back with its end."""
        with self._lock:
            if client in self._clients:  # not found dead since it asked
                self._leases[lease] = (client, [])

    def lend(
        self, client: int, lease: int, keys: Sequence[bytes], layout: bytes, *, exact: bool = False
    ) -> list[SlotRef]:
        """Slots of the leading run of keys that lies in the arena, until the lease ends."""
        with self._lock:
            owner, slots = self._leases.get(lease, (0, []))
            if owner != client:
                return []  # the lease has ended: nobody would give these back
            refs = self._arena.lend(client, keys, layout, exact=exact)
            slots.extend(ref.slot for ref in refs)
        return refs

    def end_lease(self, lease: int) -> None:
        """The copies of a lease are done; an unknown lease is a no-op."""
        with self._lock:
            client, slots = self._leases.pop(lease, (0, []))
        self._arena.take_back(client, slots)

    def reserve(
        self, client: int, keys: Sequence[bytes], layout: bytes, length: int, namespace: bytes
    ) -> list[SlotRef]:
        """A slot for each leading key, of length 0 where the key is held already, as long as there is room."""
        fresh = [key for key in dict.fromkeys(keys) if not self._store.contains(key, layout)]
        with self._lock:  # a client that is found dead from here on gives back what it gets now
            if client not in self._clients:
                return []
            slots, evicted = self._arena.reserve(client, fresh, length, namespace)
        self._store.reconcile(evicted)
        given = dict(zip(fresh, slots, strict=False))
        refs: list[SlotRef] = []
        for key in keys:
            if key in given:
                refs.append(given.pop(key))
            elif key in fresh and key not in fresh[: len(slots)]:
                break
            else:
                refs.append(SlotRef(0, 0, 0, 0))
        self._arena.give_up(client, [ref.slot for ref in given.values()])
        return refs

    def commit(self, client: int, ref: SlotRef, block: Block) -> Put:
        """Stores what the client wrote into a reserved slot. Checks the payload: call it off the event loop."""
        block = self._store.stamped(block)
        outcome, evicted, whole, release = self._arena.commit(client, ref, block, readers=self._store.lower_tiers)
        if whole is not None:
            return self._store.stored_above(whole, evicted, release=release)
        self._store.reconcile(evicted)
        return outcome

    def commit_many(self, client: int, filled: Sequence[tuple[SlotRef, Block]]) -> list[Put]:
        """`commit` of each, in order."""
        return [self.commit(client, ref, block) for ref, block in filled]

    def give_up(self, client: int, slots: Sequence[int]) -> None:
        """The client fills these no more."""
        self._arena.give_up(client, slots)

    def reap(self) -> int:
        """Takes back what dead clients had; how many slots. Looks at their lock files."""
        with self._lock:
            dead = [(client, path) for client, path in self._clients.items() if is_dead(path)]
            for client, _ in dead:
                del self._clients[client]
            gone = {client for client, _ in dead}
            self._leases = {lease: item for lease, item in self._leases.items() if item[0] not in gone}
        slots = 0
        for client, path in dead:
            slots += self._arena.reclaim(client)
            self._store.release_owner(client)
            with contextlib.suppress(OSError):
                path.unlink()
        self.reclaimed += slots
        return slots
