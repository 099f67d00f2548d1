"""Transfers between the pool and this host's kvstore: payload by gRPC streams, one checksum per block.

A transfer always ends with exactly one TransferDone, also when the kvstore is dead, slow or lies: then `ok_blocks` is
the leading run that is whole, and the sequence prefills the rest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable

import grpc.aio
import xxhash
from octavo.packing import pack_keys
from octavo.rpc.channels import open_channel
from octavo.v1 import kvstore_pb2 as pb
from octavo.v1 import kvstore_pb2_grpc

from octavo_gpuworker.engine import LoadedBlock
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.orders import LoadOrder, OffloadOrder, Order, TransferDone

LOAD_LIMIT_S = 1.0
OFFLOAD_LIMIT_S = 10.0
log = logging.getLogger(__name__)
FAILURES = (grpc.aio.AioRpcError, TimeoutError, ConnectionError, ValueError)


class Transfers:
    """Runs on the asyncio loop; hands blocks and ends to the step thread through `post`."""

    def __init__(
        self,
        address: str,
        pool: KvPool,
        layout: bytes,
        post: Callable[[list[Order | LoadedBlock | TransferDone]], None],
    ) -> None:
        self._pool = pool
        self._layout = layout
        self._post = post
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._channel = open_channel(address) if address else None
        self._store = kvstore_pb2_grpc.KvStoreServiceStub(self._channel) if self._channel else None  # type: ignore[no-untyped-call]

    def start(self, order: OffloadOrder | LoadOrder) -> None:
        """Begins a transfer; may be called from the step thread."""
        self._loop.call_soon_threadsafe(self._start, order)

    async def quiesce(self) -> None:
        """Cancels what runs and waits until no copy touches the pool any more."""
        running = list(self._tasks.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._tasks.clear()

    async def store_id(self) -> str:
        """The kvstore's stable name, or empty when none is configured or it does not answer."""
        if self._store is None:
            return ""
        try:
            return str((await self._store.GetStats(pb.GetStatsRequest(), timeout=2.0)).store_id)
        except FAILURES:
            return ""

    async def close(self) -> None:
        await self.quiesce()
        if self._channel is not None:
            await self._channel.close(None)

    def _start(self, order: OffloadOrder | LoadOrder) -> None:
        run = self._load(order) if isinstance(order, LoadOrder) else self._offload(order)
        task = self._loop.create_task(run)
        self._tasks[order.xfer_id] = task
        task.add_done_callback(lambda ended: self._forget(order.xfer_id, ended))

    def _forget(self, xfer_id: int, ended: asyncio.Task[None]) -> None:
        self._tasks.pop(xfer_id, None)
        if not ended.cancelled() and (error := ended.exception()) is not None:
            log.error("transfer %d failed: %s: %s", xfer_id, type(error).__name__, error)
            self._post([TransferDone(xfer_id, 0)])  # else its blocks would be held for ever

    async def _load(self, order: LoadOrder) -> None:
        started = time.monotonic_ns()
        limit_s = order.limit_us / 1e6 or LOAD_LIMIT_S
        ok, size, looked_up = 0, 0, started
        try:
            if self._store is None:
                raise ConnectionError("no kvstore configured")
            async with asyncio.timeout(limit_s):
                pin = pb.PinRequest(keys=pack_keys(order.keys), layout=self._layout, limit_us=int(limit_s * 1e6))
                lease = await self._store.Pin(pin)
                looked_up = time.monotonic_ns()
                if lease.held:
                    request = pb.GetRequest(
                        keys=pack_keys(order.keys[: lease.held]), layout=self._layout, lease=lease.lease
                    )
                    async for block in self._store.Get(request):
                        if ok == len(order.keys) or not self._whole(block, order.keys[ok]):
                            break
                        self._post([LoadedBlock(order.xfer_id, order.blocks[ok], block.payload)])
                        ok, size = ok + 1, size + len(block.payload)
                    await self._store.Unpin(pb.UnpinRequest(lease=lease.lease))
        except FAILURES:
            pass  # a miss, a dead store or a timeout costs prefill, never correctness: `ok` says how far it came
        ended = time.monotonic_ns()
        done = TransferDone(order.xfer_id, ok, size, (looked_up - started) // 1000, (ended - looked_up) // 1000)
        self._post([done])

    def _whole(self, block: pb.GetResponse, key: bytes) -> bool:
        return (
            block.key == key
            and len(block.payload) == self._pool.block_bytes
            and xxhash.xxh3_64_intdigest(block.payload) == block.checksum
        )

    async def _offload(self, order: OffloadOrder) -> None:
        started = time.monotonic_ns()
        ok, size = 0, 0
        try:
            if self._store is None:
                raise ConnectionError("no kvstore configured")
            async with asyncio.timeout(OFFLOAD_LIMIT_S):
                answer = await self._store.Put(self._blocks(order))
            if not answer.refused:
                ok, size = len(order.blocks), len(order.blocks) * self._pool.block_bytes
        except FAILURES:
            pass  # write-behind: what is not stored is computed again one day
        self._post([TransferDone(order.xfer_id, ok, size, 0, (time.monotonic_ns() - started) // 1000)])

    async def _blocks(self, order: OffloadOrder) -> AsyncIterator[pb.PutRequest]:
        for block, key in zip(order.blocks, order.keys, strict=True):
            payload = await asyncio.to_thread(self._pool.read_block, block)
            yield pb.PutRequest(
                key=key, payload=payload, checksum=xxhash.xxh3_64_intdigest(payload), layout=self._layout
            )
