"""The remote tier: blocks that kvstores of other hosts hold, fetched as a run of a chain over one stream.

It is read only: what a peer holds got there by that host's own workers. Whoever asks says which peers are believed to
hold which keys (the scheduler's directory); a wrong hint is a miss. A peer that is dead, slow or wrong costs at most
the stall limit once, and is then left alone for a while. A stream that breaks is taken up again at the byte where it broke.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import xxhash

from octavo_kvstore.block import Block
from octavo_kvstore.codecs.choice import Chooser
from octavo_kvstore.codecs.forms import BY_NAME, RAW
from octavo_kvstore.peers.book import Dial, Peer, PeerBook
from octavo_kvstore.peers.pieces import Ask, PeerFailed, RecordHead
from octavo_kvstore.peers.receiver import Partial, PeerSilent, PieceCorrupt, Receiver

NAME = "remote"
STALL_S = 0.4
"""Longest wait for a next piece: below the load limit of a request, so that a dead peer still leaves time to compute."""
RESUMES = 2
"""How often one run is taken up again at the same peer."""

log = logging.getLogger("octavo.kvstore.remote")


@dataclass(frozen=True, slots=True)
class Source:
    """keys[first : first + count] are believed to be held by a store."""

    store_id: str
    first: int
    count: int

    def behind(self, at: int) -> Source | None:
        """What it says of keys[at:], with `at` for the new first; None: nothing."""
        end = self.first + self.count
        first = max(self.first, at)
        return Source(self.store_id, first - at, end - first) if end > first else None

    def end_at(self, index: int) -> int:
        """Where its run ends that covers `index`; 0 when it does not."""
        return self.first + self.count if self.first <= index < self.first + self.count else 0


@dataclass(slots=True)
class RemoteCounters:
    """Since start."""

    blocks: int = 0
    bytes: int = 0
    """As they travelled."""
    misses: int = 0
    """Runs that ended before the last key that was hinted at."""
    resumed: int = 0
    corrupt: int = 0
    failed: int = 0


class RemoteTier:
    """Used on the event loop alone; decodes in threads."""

    name = NAME

    def __init__(
        self,
        book: PeerBook,
        dial: Dial,
        chooser: Chooser,
        stall_s: float = STALL_S,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.book = book
        self.counters = RemoteCounters()
        self._dial = dial
        self._chooser = chooser
        self._stall_s = stall_s
        self._clock_s = clock_s

    def figures(self) -> dict[str, float]:
        """Named as in instruments.py."""
        now_s, peers, counters = self._clock_s(), self.book.all(), self.counters
        return {
            "peers": float(len(peers)),
            "peers_answering": float(sum(peer.answers(now_s) for peer in peers)),
            "remote_blocks": float(counters.blocks),
            "remote_bytes": float(counters.bytes),
            "remote_misses": float(counters.misses),
            "remote_resumed": float(counters.resumed),
            "remote_corrupt": float(counters.corrupt),
            "remote_failed": float(counters.failed),
        }

    def run(self, sources: Sequence[Source], start: int, limit: int) -> int:
        """How many keys from `start` on, up to index `limit`, peers that answer are believed to hold without a gap."""
        at = start
        while at < limit and (end := self._best(sources, at, frozenset())[1]) > at:
            at = min(limit, end)
        return at - start

    async def fetch(
        self, keys: Sequence[bytes], layout: bytes, sources: Sequence[Source], *, exact: bool
    ) -> AsyncGenerator[Block, None]:
        """The blocks of keys[0], keys[1], ... up to the first that no peer gives; each checked and decoded.

        `sources` index into `keys`. Ends early whenever peers fail; raises nothing but cancellation.
        """
        at, tried = 0, set[str]()
        while at < len(keys):
            peer, end = self._best(sources, at, tried)
            if peer is None:
                break
            async with aclosing(self._from_peer(peer, keys[at : min(end, len(keys))], layout, exact)) as blocks:
                async for block in blocks:
                    yield block
                    at += 1
            if at < min(end, len(keys)):
                tried.add(peer.store_id)
        hinted = max((source.first + source.count for source in sources), default=0)
        self.counters.misses += at < min(hinted, len(keys))

    def _best(self, sources: Sequence[Source], at: int, tried: set[str] | frozenset[str]) -> tuple[Peer | None, int]:
        """(the peer that covers the longest run from `at`, where that ends); the faster link among equals."""
        now_s = self._clock_s()
        best: Peer | None = None
        best_end = 0
        for source in sources:
            end, peer = source.end_at(at), self.book.find(source.store_id)
            if not end or peer is None or source.store_id in tried or not peer.answers(now_s):
                continue
            faster = best is None or peer.link.bytes_per_s > best.link.bytes_per_s
            if end > best_end or (end == best_end and faster):
                best, best_end = peer, end
        return best, best_end

    async def _from_peer(
        self, peer: Peer, keys: Sequence[bytes], layout: bytes, exact: bool
    ) -> AsyncGenerator[Block, None]:
        """Blocks of one peer, taken up again where a stream broke; stops at its first miss, or when it has failed."""
        at, partial = 0, Partial()
        for attempt in range(1 + RESUMES):
            stood_at = at, len(partial.data)
            try:
                ask = self._ask(peer, keys[at:], layout, exact, partial)
                receiver = Receiver(self._dial(peer.address, ask), partial, len(ask.keys), peer.link, self._stall_s)
                async with aclosing(receiver.records()) as records:
                    async for head, record in records:
                        block = await self._decoded(keys[at], layout, head, record, exact)
                        at += 1
                        peer.answered()
                        self.counters.blocks += 1
                        self.counters.bytes += len(record)
                        yield block
                return
            except PeerFailed as error:
                self.counters.failed += 1
                self.counters.corrupt += isinstance(error, PieceCorrupt)
                log.debug("peer %s at %s: %s", peer.store_id, peer.address, error)
                moved = (at, len(partial.data)) != stood_at
                # one that gave nothing is not asked again at once, unless it was only a bad piece; nor is a silent one,
                # since each try could cost the stall limit
                again = isinstance(error, PieceCorrupt) or (moved and not isinstance(error, PeerSilent))
                if attempt == RESUMES or not again:
                    break
                self.counters.resumed += 1
        peer.failed(self._clock_s())

    def _ask(self, peer: Peer, keys: Sequence[bytes], layout: bytes, exact: bool, partial: Partial) -> Ask:
        ask = Ask(tuple(keys), layout, exact, self._chooser.codec, peer.link.bytes_per_s)
        head = partial.head
        if head is None or not partial.data:
            return ask
        return replace(ask, offset=len(partial.data), record_checksum=head.record_checksum, form=head.form)

    async def _decoded(
        self, key: bytes, layout: bytes, head: RecordHead, record: bytes | memoryview, exact: bool
    ) -> Block:
        """Raises PeerFailed when the record is not what its head says."""
        form = BY_NAME.get(head.form)
        if form is None or (form is not RAW and head.shape is None):
            raise PeerFailed(f"a record came in the form {head.form!r}, which cannot be decoded here")
        lossy = head.meta.lossy or form.lossy
        if lossy and exact:
            raise PeerFailed("a lossy block came where exactness was asked for")
        payload, checksum = record, head.record_checksum
        if form is not RAW and head.shape is not None:
            try:
                payload = await asyncio.to_thread(self._chooser.decode, form, bytes(record), head.shape)
            except ValueError as error:
                raise PieceCorrupt(str(error)) from error
            checksum = xxhash.xxh3_64_intdigest(payload)
        if len(payload) != head.payload_bytes or (not form.lossy and checksum != head.payload_checksum):
            raise PieceCorrupt("a payload lacks its checksum")
        return Block(key, head.parent, layout, checksum, payload, replace(head.meta, lossy=lossy))
