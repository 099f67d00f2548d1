"""A Get of a process that maps the arena: blocks from below are read into slots, several at a time, and named instead of sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor

from octavo.v1 import kvstore_pb2 as pb

from octavo_kvstore.arena_desk import ArenaDesk
from octavo_kvstore.index import Clock
from octavo_kvstore.store import Store
from octavo_kvstore.wire import get_response, ref_to

READS_AHEAD = 4
"""Disk reads under way at once for one Get: a single one leaves the disk idle between blocks."""


class ArenaReader:
    """Serves one Get. The lease must hold the keys."""

    def __init__(
        self, store: Store, desk: ArenaDesk, pool: Executor, client: int, lease: int, exact: bool = False
    ) -> None:
        self._store = store
        self._desk = desk
        self._pool = pool
        self._client = client
        self._lease = lease
        self._exact = exact

    async def read(self, keys: Sequence[bytes], layout: bytes, clock_s: Clock) -> AsyncIterator[pb.GetResponse]:
        """One answer per key in order, up to the first miss."""
        loop = asyncio.get_running_loop()
        ahead: deque[asyncio.Future[pb.GetResponse | None]] = deque()
        at = done = 0
        try:
            while done < len(keys):
                while at < len(keys) and len(ahead) < READS_AHEAD:
                    ahead.append(loop.run_in_executor(self._pool, self._answer, keys[at], layout, clock_s))
                    at += 1
                response = await ahead.popleft()
                if response is None:
                    return
                done += 1
                yield response
        finally:
            # what is still being read is lent out for the lease like the rest, so its end frees it
            await asyncio.gather(*ahead, return_exceptions=True)
            self._store.touch_chain(keys[:done])

    def _answer(self, key: bytes, layout: bytes, clock_s: Clock) -> pb.GetResponse | None:
        refs = self._desk.lend(self._client, self._lease, [key], layout, exact=self._exact)
        tier = "dram"
        if not refs and (lifted := self._store.lift(key, layout)) is not None:
            tier = lifted.tier
            refs = self._desk.lend(self._client, self._lease, [key], layout, exact=self._exact)
        if refs:
            return pb.GetResponse(key=key, tier=tier, checksum=refs[0].checksum, slot=ref_to(refs[0]))
        found = self._store.get(key, layout, exact=self._exact)
        return None if found is None else get_response(found, clock_s())
