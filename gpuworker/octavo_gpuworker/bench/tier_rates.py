"""python -m octavo_gpuworker.bench.tier_rates --kvstore ADDRESS: how fast a worker's own transfers move blocks, on request.

One JSON object a line each way, until stdin ends:
{"do": "put", "chain": 0} -> {"blocks", "mb_per_s"}: a chain of blocks to the store
{"do": "load", "chain": 0} -> {"blocks", "tier", "mb_per_s", "lookup_us"}: back into the pool
{"do": "memcpy", "shared": true} -> {"mb_per_s"}: the same bytes, block by block, from shared memory (else: private) to the pool
An error is {"error": "..."} and the process goes on. MB are 10^6 bytes; the lookup is not part of a load's time.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import mmap
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_gpuworker.backends.native_pool import NativePool
from octavo_gpuworker.engine import LoadedBlock
from octavo_gpuworker.orders import LoadOrder, OffloadOrder, TransferDone
from octavo_gpuworker.transfer import Transfers

LAYOUT = hashlib.sha256(b"octavo bench cache").digest()
LIMIT_US = 30_000_000


class Rates:
    """A pool of two chains: one to write from, one to read into; both touched before anything is measured."""

    def __init__(self, address: str, blocks: int, block_bytes: int) -> None:
        random = np.random.default_rng(7)
        array = random.integers(0, 256, (1 + 2 * blocks, block_bytes), np.uint8)
        self._blocks = blocks
        self._source = random.integers(0, 256, (blocks, block_bytes), np.uint8)
        # anonymous and shared: the kind of memory that an arena is, in pages of 4 KiB
        shared = mmap.mmap(-1, blocks * block_bytes)
        self._shared = np.frombuffer(shared, np.uint8).reshape(blocks, block_bytes)
        self._shared[:] = self._source
        self._pool = NativePool(array, 16)
        self._ended: asyncio.Queue[TransferDone] = asyncio.Queue()
        self._transfers = Transfers(address, self._pool, LAYOUT, self._take)
        self._number = 0

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One measurement."""
        if request["do"] == "memcpy":
            return self._memcpy(self._shared if request["shared"] else self._source)
        self._number += 1
        chain = request["chain"]
        keys = [hashlib.sha256(f"{chain}/{at}".encode()).digest() for at in range(self._blocks)]
        if request["do"] == "put":
            order = OffloadOrder(self._number, list(range(1, 1 + self._blocks)), keys, [bytes(32), *keys[:-1]])
            done = await self._run(order)
            return {"blocks": done.ok_blocks, "mb_per_s": done.bytes / max(1, done.transfer_us)}
        targets = list(range(1 + self._blocks, 1 + 2 * self._blocks))
        done = await self._run(LoadOrder(self._number, keys, targets, LIMIT_US))
        whole = all(
            np.array_equal(self._pool.array[at], self._pool.array[at - self._blocks])
            for at in targets[: done.ok_blocks : 16]
        )
        return {
            "blocks": done.ok_blocks if whole else 0,
            "tier": done.tier,
            "mb_per_s": done.bytes / max(1, done.transfer_us),
            "lookup_us": done.lookup_us,
        }

    async def close(self) -> None:
        await self._transfers.close()

    def _memcpy(self, source: NDArray[np.uint8]) -> dict[str, Any]:
        began_ns = time.perf_counter_ns()
        for at in range(self._blocks):
            np.copyto(self._pool.array[1 + self._blocks + at], source[at])
        return {"mb_per_s": source.nbytes * 1000 / (time.perf_counter_ns() - began_ns)}

    async def _run(self, order: LoadOrder | OffloadOrder) -> TransferDone:
        self._transfers.start(order)
        return await self._ended.get()

    def _take(self, items: list[Any]) -> None:
        for item in items:
            if isinstance(item, TransferDone):
                self._ended.put_nowait(item)
            elif isinstance(item, LoadedBlock):
                self._pool.write_block(item.block, item.payload)


async def serve(rates: Rates) -> None:
    """Answers until stdin ends."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            answer = await rates.answer(json.loads(line))
        except (ValueError, KeyError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    await rates.close()


async def _main() -> None:
    parser = argparse.ArgumentParser(description="Rates of a worker's transfers with a kvstore.")
    parser.add_argument("--kvstore", required=True, help="host:port or unix:path")
    parser.add_argument("--blocks", type=int, default=64, help="of a chain")
    parser.add_argument("--block-bytes", type=int, default=368_640, help="of one block")
    given = parser.parse_args()
    await serve(Rates(given.kvstore, given.blocks, given.block_bytes))


if __name__ == "__main__":
    asyncio.run(_main())
