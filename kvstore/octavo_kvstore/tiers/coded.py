"""CodedTier: a tier whose payloads are compressed where that is faster, and encrypted where that is asked for.

It wraps another tier and keeps its contract. What lies below has a layout fingerprint of its own, derived from the
block's, so a plain record is never taken for a coded one nor the other way round: switching a codec or encryption on
or off starts with misses.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import xxhash

from octavo_kvstore.block import Block, BlockMeta, check_block
from octavo_kvstore.codecs.choice import Chooser, LinkSpeed
from octavo_kvstore.codecs.envelope import HEAD_BYTES, Head, unpack_head
from octavo_kvstore.codecs.shapes import ShapeTable
from octavo_kvstore.encryption import Vault, fresh_nonce
from octavo_kvstore.tier import Put, Tier, TierStats


@lru_cache(maxsize=1024)
def coded_layout(layout: bytes) -> bytes:
    """The fingerprint under which coded payloads of `layout` lie."""
    return hashlib.blake2b(layout, digest_size=32, person=b"octavo.coded.v1").digest()


class CodedTier(Tier):
    """Encodes on the way down, decodes on the way up; `link` learns the speed of the medium from every read."""

    def __init__(
        self,
        inner: Tier,
        chooser: Chooser,
        shapes: ShapeTable,
        vault: Vault | None = None,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name = inner.name
        self.inner = inner
        self.vault = vault
        self.reads, self.writes = LinkSpeed(), LinkSpeed()
        self._chooser = chooser
        self._shapes = shapes
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._corrupt = self._unreadable = 0
        self._sealed: set[bytes] = set()  # keys whose records are not ours to open: held by nobody, and written anew
        self._plain: dict[bytes, bytes] = {}  # coded layout -> layout, of those that were named; few
        inner.on_lost = lambda keys: self.on_lost(keys)

    def put_many(self, blocks: Sequence[Block]) -> tuple[list[Put], list[bytes]]:
        outcomes: list[Put] = []
        coded: dict[int, Block] = {}
        for index, block in enumerate(blocks):
            check_block(block)
            if self.contains(block.key, block.layout):  # nothing is encoded for what is there already
                self.inner.refresh(block.key, block.meta)
                self.inner.touch(block.key)
                outcomes.append(Put.KNOWN)
                continue
            sealed = self._encoded(block)
            if sealed is not None and block.key in self._sealed:
                self.inner.delete(block.key)
                self._sealed.discard(block.key)
            outcomes.append(Put.REFUSED if sealed is None else Put.STORED)
            if sealed is not None:
                coded[index] = sealed
        if not coded:
            return outcomes, []
        began_s = self._clock_s()
        stored, evicted = self.inner.put_many(list(coded.values()))
        self.writes.observe(sum(len(block.payload) for block in coded.values()), self._clock_s() - began_s)
        for index, outcome in zip(coded, stored, strict=True):
            outcomes[index] = outcome
        return outcomes, evicted

    def get(self, key: bytes, layout: bytes) -> Block | None:
        began_s = self._clock_s()
        found = self.inner.get(key, self._below(layout))
        if found is None:
            return None
        self.reads.observe(len(found.payload), self._clock_s() - began_s)
        try:
            block = self._decoded(found, layout)
            if block is None:
                self._sealed.add(key)
                self.on_lost([key])
            else:
                self._sealed.discard(key)
            return block
        except ValueError:  # whole below, but not what we write: as damaged as a bad checksum
            with self._lock:
                self._corrupt += 1
            self.inner.delete(key)
            self.on_lost([key])
            return None

    def _below(self, layout: bytes) -> bytes:
        coded = coded_layout(layout)
        self._plain.setdefault(coded, layout)
        return coded

    def _encoded(self, block: Block) -> Block | None:
        """The block as it lies below; None when its key cannot be had."""
        told = self._shapes.get(block.layout)
        shape = told.shape if told else None
        payload = block.payload
        if not isinstance(payload, bytes):
            # a slot that a worker could still write to: what is coded must be what it said
            payload = bytes(payload)
            if xxhash.xxh3_64_intdigest(payload) != block.checksum:
                return None
        exact = bool(told and told.exact) or block.meta.lossy  # quantized once at most
        speed = self.reads.bytes_per_s or self.writes.bytes_per_s
        form, body = self._chooser.encode(payload, shape, exact=exact, link_bytes_per_s=speed)
        nonce = fresh_nonce() if self.vault else b""
        head = Head(form, len(payload), block.checksum, shape, block.meta.lossy, nonce).pack()
        if self.vault is not None:
            sealed = self.vault.seal(block.meta.namespace, nonce, block.key + head, body)
            if sealed is None:
                return None
            body = sealed
        record = head + body
        return replace(
            block, layout=self._below(block.layout), payload=record, checksum=xxhash.xxh3_64_intdigest(record)
        )

    def _decoded(self, found: Block, layout: bytes) -> Block | None:
        """The block as it was put, or as close as its form is; None: not ours to open. Raises ValueError on damage."""
        record = found.payload if isinstance(found.payload, bytes) else bytes(found.payload)
        head = unpack_head(record)
        body = record[HEAD_BYTES:]
        if bool(head.nonce) != (self.vault is not None):
            self._note_unreadable()
            return None
        if self.vault is not None:
            plain = self.vault.open(found.meta.namespace, head.nonce, found.key + record[:HEAD_BYTES], body)
            if plain is None:
                self._note_unreadable()
                return None
            body = plain
        if head.form.number and head.shape is None:
            raise ValueError("envelope: its form needs a shape")
        payload = self._chooser.decode(head.form, body, head.shape) if head.shape is not None else body
        if len(payload) != head.length:
            raise ValueError("envelope: the payload has another length")
        checksum = xxhash.xxh3_64_intdigest(payload)
        if not head.form.lossy and checksum != head.checksum:
            raise ValueError("envelope: the payload lacks its checksum")
        meta = replace(found.meta, lossy=head.lossy)
        return replace(found, layout=layout, payload=payload, checksum=checksum, meta=meta)

    def _note_unreadable(self) -> None:
        """Another secret, or a namespace that was erased: a miss. It is left there for who can open it, and for the sweep."""
        with self._lock:
            self._unreadable += 1

    def erase(self, namespace: bytes) -> bool:
        return self.vault is not None and self.vault.erase(namespace)

    def contains(self, key: bytes, layout: bytes | None = None) -> bool:
        return key not in self._sealed and self.inner.contains(key, None if layout is None else self._below(layout))

    def touch(self, key: bytes) -> None:
        self.inner.touch(key)

    def refresh(self, key: bytes, meta: BlockMeta) -> None:
        self.inner.refresh(key, meta)

    def sweep(self) -> list[bytes]:
        swept = self.inner.sweep()
        self._sealed.difference_update(swept)
        return swept

    def of_namespace(self, namespace: bytes) -> list[bytes]:
        return self.inner.of_namespace(namespace)

    def layout_of(self, key: bytes) -> bytes:
        """Empty also when nobody has named the block's layout since the start."""
        return self._plain.get(self.inner.layout_of(key), b"")

    def parent_of(self, key: bytes) -> bytes:
        return self.inner.parent_of(key)

    def delete(self, key: bytes) -> bool:
        self._sealed.discard(key)
        return self.inner.delete(key)

    def keys(self) -> list[bytes]:
        held = self.inner.keys()
        return [key for key in held if key not in self._sealed]

    def stats(self) -> TierStats:
        below = self.inner.stats()
        lost = self._corrupt + self._unreadable  # hits below that nobody got
        return replace(below, corrupt=below.corrupt + self._corrupt, hits=below.hits - lost, misses=below.misses + lost)

    def close(self) -> None:
        self.inner.close()
