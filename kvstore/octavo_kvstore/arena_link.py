"""A Get of a process that maps the arena: blocks from below are read into slots, several at a time, and named instead of sent."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing

from octavo.v1 import kvstore_pb2 as pb

from octavo_kvstore.arena_desk import ArenaDesk
from octavo_kvstore.index import Clock
from octavo_kvstore.store import Store
from octavo_kvstore.tier import Lane
from octavo_kvstore.wire import get_response, ref_to

READS_AHEAD = 4
"""Disk reads under way at once for one Get: a single one leaves the disk idle between blocks."""
MOST_TOGETHER = 4
"""Blocks that one thread reads before they are told: a message for each costs as much as reading it."""

DRAM_TIER = "dram"
LEAST_RUN = 8
"""Blocks in a row on the medium from which on one reader in order may be faster than several."""
LANE_TOGETHER = 8
"""Blocks of a lane that are told at once: each message takes the interpreter from the reader."""
LANE_BLOCKS = 64
"""Most blocks of one lane: a reader that nobody listens to any more ends with it at the latest."""


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
        done = 0
        try:
            while done < len(keys):
                run, lane = self._store.lane_of(keys[done : done + LANE_BLOCKS], layout)
                in_lane = lane is not None and run >= LEAST_RUN and self._desk.ways.lane_next()
                part = keys[done : done + run] if run >= LEAST_RUN else keys[done : self._next_run(keys, done, layout)]
                reading = self._in_lane(part, layout, clock_s, lane) if in_lane else self._spread(part, layout, clock_s)
                came, size, began_s = 0, 0, time.perf_counter()
                async with aclosing(reading) as groups:
                    async for responses in groups:
                        came += len(responses)
                        # what lay in DRAM came from no disk
                        size += sum(response.slot.length for response in responses if response.tier != DRAM_TIER)
                        yield responses
                done += came
                if run >= LEAST_RUN:
                    self._desk.ways.note(in_lane, size, time.perf_counter() - began_s)
                if came < len(part):
                    return
        finally:
            self._store.touch_chain(keys[:done])

    def _next_run(self, keys: Sequence[bytes], at: int, layout: bytes) -> int:
        """Where the first run behind `at` begins, or the keys end."""
        at += 1
        while at < len(keys):
            run, _ = self._store.lane_of(keys[at : at + LEAST_RUN], layout)
            if run >= LEAST_RUN:
                break
            at += max(1, run)
        return min(at, len(keys))

    async def _spread(
        self, keys: Sequence[bytes], layout: bytes, clock_s: Clock
    ) -> AsyncGenerator[list[pb.GetResponse], None]:
        """Several threads at once."""
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

    async def _in_lane(
        self, keys: Sequence[bytes], layout: bytes, clock_s: Clock, lane: Lane | None
    ) -> AsyncGenerator[list[pb.GetResponse], None]:
        """One thread, in order, telling every few blocks as it goes."""
        loop = asyncio.get_running_loop()
        came: asyncio.Queue[list[pb.GetResponse]] = asyncio.Queue()
        left = threading.Event()

        def read() -> None:
            try:
                for at in range(0, len(keys), LANE_TOGETHER):
                    part = keys[at : at + LANE_TOGETHER]
                    responses = [] if left.is_set() else self._answers(part, layout, clock_s, lane)
                    loop.call_soon_threadsafe(came.put_nowait, responses)
                    if len(responses) < len(part):
                        return
            finally:
                loop.call_soon_threadsafe(came.put_nowait, [])
                if lane is not None:
                    lane.close()

        reading = loop.run_in_executor(self._pool, read)
        try:
            done = 0
            while done < len(keys) and (responses := await came.get()):
                done += len(responses)
                yield responses
            if done < len(keys):
                await reading  # what ended it, when that was no miss
        finally:
            left.set()
            await asyncio.gather(reading, return_exceptions=True)

    def _answers(
        self, keys: Sequence[bytes], layout: bytes, clock_s: Clock, lane: Lane | None = None
    ) -> list[pb.GetResponse]:
        found: list[pb.GetResponse] = []
        for key in keys:
            response = self._answer(key, layout, clock_s, lane)
            if response is None:
                break
            found.append(response)
        return found

    def _answer(self, key: bytes, layout: bytes, clock_s: Clock, lane: Lane | None) -> pb.GetResponse | None:
        refs = self._desk.lend(self._client, self._lease, [key], layout, exact=self._exact)
        tier = DRAM_TIER
        if not refs and (lifted := self._store.lift(key, layout, lane)) is not None:
            tier = lifted.tier
            refs = self._desk.lend(self._client, self._lease, [key], layout, exact=self._exact)
        if refs:
            return pb.GetResponse(key=key, tier=tier, checksum=refs[0].checksum, slot=ref_to(refs[0]))
        found = self._store.get(key, layout, exact=self._exact)
        return None if found is None else get_response(found, clock_s())
