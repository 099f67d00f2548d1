"""Transfers between the pool and this host's kvstore: payload by gRPC streams, one checksum per block.

A transfer always ends with exactly one TransferDone, also when the kvstore is dead, slow or lies: then `ok_blocks` is
the leading run that is whole, and the sequence prefills the rest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc.aio
import xxhash
from octavo.packing import pack_keys
from octavo.rpc.channels import open_channel
from octavo.v1 import kvstore_pb2 as pb
from octavo.v1 import kvstore_pb2_grpc

from octavo_gpuworker.backends.blocks import BlockPool
from octavo_gpuworker.engine import LoadedBlock
from octavo_gpuworker.orders import BlockNote, LoadOrder, OffloadOrder, Order, TransferDone

LOAD_LIMIT_US = 1_000_000
"""Of a Load that names no limit."""
OFFLOAD_LIMIT_S = 2.0
"""Its blocks cannot be evicted meanwhile, so a stuck kvstore must not hold them for long."""
UNPIN_LIMIT_S = 2.0
NO_PARENT = bytes(32)
FAILURES = (grpc.aio.AioRpcError, TimeoutError, ConnectionError)
"""What a kvstore that is absent, dead or slow looks like."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Progress:
    """How far a transfer came: its leading whole run, and when its lookup ended."""

    ok: int = 0
    bytes: int = 0
    looked_up_ns: int = 0
    lease: int = 0
    tier: str = ""


def limit_us(order: LoadOrder) -> int:
    """How long a load may take."""
    return order.limit_us or LOAD_LIMIT_US


class Transfers:
    """Runs on the asyncio loop; hands blocks and ends to the step thread through `post`."""

    def __init__(
        self,
        address: str,
        pool: BlockPool,
        layout: bytes,
        post: Callable[[list[Order | LoadedBlock | TransferDone]], None],
    ) -> None:
        self._pool = pool
        self._layout = layout
        self._post = post
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Future[bytes] | None = None
        self._channel = open_channel(address) if address else None
        self._store = kvstore_pb2_grpc.KvStoreServiceStub(self._channel) if self._channel else None  # type: ignore[no-untyped-call]

    def start(self, order: OffloadOrder | LoadOrder) -> None:
        """Begins a transfer; may be called from the step thread."""
        self._loop.call_soon_threadsafe(self._start, order)

    async def quiesce(self) -> None:
        """Cancels what runs and waits until no copy touches the pool any more. What was cancelled is not told: its epoch is over."""
        running = list(self._tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self._reading is not None:
            await asyncio.wait({self._reading})

    async def store_id(self) -> str:
        """The kvstore's stable name, or empty when none is configured or it does not answer."""
        if self._store is None:
            return ""
        try:
            return str((await self._store.GetStats(pb.GetStatsRequest(), timeout=2.0)).store_id)
        except FAILURES as error:
            log.debug("kvstore does not answer: %r", error)
            return ""

    async def close(self) -> None:
        await self.quiesce()
        if self._channel is not None:
            await self._channel.close(None)

    def _start(self, order: OffloadOrder | LoadOrder) -> None:
        task = self._loop.create_task(self._run(order))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, order: OffloadOrder | LoadOrder) -> None:
        """One transfer, and its end whatever became of it."""
        began_ns = time.monotonic_ns()
        progress = Progress(looked_up_ns=began_ns)
        try:
            if isinstance(order, LoadOrder):
                async with asyncio.timeout(limit_us(order) / 1e6):
                    await self._load(order, progress)
            else:
                async with asyncio.timeout(OFFLOAD_LIMIT_S):
                    await self._offload(order, progress)
        except FAILURES as error:
            # a miss, a dead store or a timeout costs prefill, never correctness: `ok` says how far it came
            log.debug("transfer %d ended after %d blocks: %r", order.xfer_id, progress.ok, error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # grpc.aio cancels a call whose request iterator raised; that must not pass for a cancelled transfer
            log.error("transfer %d failed: its blocks could not be read", order.xfer_id)
        except Exception:
            log.exception("transfer %d failed after %d blocks", order.xfer_id, progress.ok)
        lookup_us = (progress.looked_up_ns - began_ns) // 1000
        transfer_us = (time.monotonic_ns() - progress.looked_up_ns) // 1000
        self._post([TransferDone(order.xfer_id, progress.ok, progress.bytes, lookup_us, transfer_us, progress.tier)])
        if progress.lease:
            await self._unpin(progress.lease)

    def _stub(self) -> Any:
        if self._store is None:
            raise ConnectionError("no kvstore configured")
        return self._store

    async def _load(self, order: LoadOrder, progress: Progress) -> None:
        store, count = self._stub(), min(len(order.keys), len(order.blocks))
        keys = order.keys[:count]
        lease = await store.Pin(pb.PinRequest(keys=pack_keys(keys), layout=self._layout, limit_us=limit_us(order)))
        progress.looked_up_ns, progress.lease = time.monotonic_ns(), lease.lease
        keys = keys[: lease.held]
        if not keys:
            return
        call = store.Get(pb.GetRequest(keys=pack_keys(keys), layout=self._layout, lease=lease.lease))
        try:
            async for block in call:
                if progress.ok == len(keys) or not self._whole(block, keys[progress.ok]):
                    break
                self._post([LoadedBlock(order.xfer_id, order.blocks[progress.ok], block.payload)])
                progress.ok, progress.tier = progress.ok + 1, block.tier
                progress.bytes += len(block.payload)
        finally:
            call.cancel()

    def _whole(self, block: pb.GetResponse, key: bytes) -> bool:
        whole = (
            block.key == key
            and len(block.payload) == self._pool.block_bytes
            and xxhash.xxh3_64_intdigest(block.payload) == block.checksum
        )
        if not whole:
            log.warning("kvstore sent a block that is not what was asked for: key, length or checksum differ")
        return whole

    async def _unpin(self, lease: int) -> None:
        """Best effort: the store ends a lease by itself at its limit."""
        try:
            await self._stub().Unpin(pb.UnpinRequest(lease=lease), timeout=UNPIN_LIMIT_S)
        except FAILURES as error:
            log.debug("lease %d ends by its limit: %r", lease, error)

    async def _offload(self, order: OffloadOrder, progress: Progress) -> None:
        answer = await self._stub().Put(self._blocks(order))
        if not answer.refused:
            progress.ok = answer.stored + answer.known
            progress.bytes = progress.ok * self._pool.block_bytes

    async def _blocks(self, order: OffloadOrder) -> AsyncIterator[pb.PutRequest]:
        parents = order.parents or [NO_PARENT] * len(order.keys)
        notes = order.metas or [BlockNote()] * len(order.keys)
        for block, key, parent, note in zip(order.blocks, order.keys, parents, notes, strict=True):
            # the transfer holds the block, so nobody writes it; off the loop, since a device copy waits
            self._reading = self._loop.run_in_executor(None, self._pool.read_block, block)
            payload = await asyncio.shield(self._reading)
            yield pb.PutRequest(
                key=key,
                parent=parent if parent != NO_PARENT else b"",
                payload=payload,
                checksum=xxhash.xxh3_64_intdigest(payload),
                layout=self._layout,
                meta=block_meta(note),
            )


def block_meta(note: BlockNote) -> pb.BlockMeta:
    """As the store reads it."""
    return pb.BlockMeta(
        namespace=note.namespace,
        ttl_us=note.ttl_us,
        priority=note.priority,
        recompute_us=note.recompute_us,
        tiers=note.tiers,
    )
