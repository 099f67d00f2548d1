"""What a worker's kvstore can give it: blocks that it holds, and those that it can fetch from kvstores of other hosts."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_scheduler.orders import LoadSource
from octavo_scheduler.tiers import Directory


class Reach:
    """One host's own directory first, then those of its peers. All of it is a hint, as each directory is."""

    __slots__ = ("own", "peers")

    def __init__(self, own: Directory, peers: Sequence[Directory] = ()) -> None:
        self.own = own
        self.peers = peers

    def run(self, keys: Sequence[bytes], start: int) -> tuple[int, int]:
        """How many keys from `start` on are held without a gap: (by the own store alone, by it and its peers)."""
        own = self.own
        if not own.synced:
            return 0, 0
        near = end = start + own.run(keys, start, len(keys))
        if self.peers:
            while end < len(keys) and (keys[end] in own or any(keys[end] in peer for peer in self.peers)):
                end += 1
        return near - start, end - start

    def sources(self, keys: Sequence[bytes]) -> list[LoadSource]:
        """Which peers to ask for those of `keys` that the own store lacks: runs of each peer that holds any."""
        found: list[LoadSource] = []
        for peer in self.peers:
            at = 0
            while at < len(keys):
                end = at
                while end < len(keys) and keys[end] in peer:
                    end += 1
                if any(key not in self.own for key in keys[at:end]):
                    found.append(LoadSource(peer.store_id, at, end - at))
                at = end + 1
        return found


def note_missed(
    own: Directory,
    peers: dict[str, Directory],
    sources: Sequence[LoadSource],
    keys: Sequence[bytes],
    ok: int,
    now_us: int,
) -> None:
    """A load brought keys[:ok]: whoever was believed to hold the next one does not, or cannot be reached."""
    if ok == len(keys):
        return
    own.missed(keys[ok:])
    for source in sources:
        peer = peers.get(source.store_id)
        if peer is None or not source.first <= ok < source.first + source.count:
            continue
        peer.missed([keys[ok]])
        if ok == source.first:
            peer.stuck(now_us)  # nothing came of it at all: not asked again at once
