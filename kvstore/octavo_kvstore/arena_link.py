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
MOST_TOGETHER = 4
"""Blocks that one thread reads before they are told: a message for each costs as much as reading it."""


def grouped(responses: list[pb.GetResponse]) -> list[pb.GetResponse]:
    """The same answers in fewer messages: behind one that names a slot, those that do too."""
    messages: list[pb.GetResponse] = []
    for response in responses:
        if messages and response.HasField("slot") and messages[-1].HasField("slot"):
            messages[-1].also.append(response)
        else:
            messages.append(response)
    return messages


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

    async def read(self, keys: Sequence[bytes], layout: bytes, clock_s: Clock) -> AsyncIterator[list[pb.GetResponse]]:
        """One answer per key in order, up to the first miss; those that one thread read come together."""
        loop = asyncio.get_running_loop()
        share = min(MOST_TOGETHER, -(-len(keys) // READS_AHEAD))
        ahead: deque[asyncio.Future[list[pb.GetResponse]]] = deque()
        at = done = 0
        try:
            while done < len(keys):
                while at < len(keys) and len(ahead) < READS_AHEAD:
                    ahead.append(
                        loop.run_in_executor(self._pool, self._answers, keys[at : at + share], layout, clock_s)
                    )
                    at += share
                due = min(share, len(keys) - done)
                responses = await ahead.popleft()
                done += len(responses)
                if responses:
                    yield responses
                if len(responses) < due:
                    return
        finally:
            # what is still being read is lent out for the lease like the rest, so its end frees it
            await asyncio.gather(*ahead, return_exceptions=True)
            self._store.touch_chain(keys[:done])

    def _answers(self, keys: Sequence[bytes], layout: bytes, clock_s: Clock) -> list[pb.GetResponse]:
        found: list[pb.GetResponse] = []
        for key in keys:
            response = self._answer(key, layout, clock_s)
            if response is None:
                break
            found.append(response)
        return found

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
