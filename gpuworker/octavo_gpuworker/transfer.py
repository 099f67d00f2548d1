"""Transfers between the pool and this host's kvstore: payload through shared memory, or by gRPC streams; one checksum per block.

A transfer always ends with exactly one TransferDone, also when the kvstore is dead, slow or lies: then `ok_blocks` is
the leading run that is whole, and the sequence prefills the rest.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import grpc.aio
import xxhash
from octavo.packing import pack_keys
from octavo.rpc.channels import open_channel
from octavo.v1 import kvstore_pb2 as pb
from octavo.v1 import kvstore_pb2_grpc

from octavo_gpuworker.arena_link import ArenaLink
from octavo_gpuworker.backends.blocks import BlockPool
from octavo_gpuworker.engine import LoadedBlock
from octavo_gpuworker.orders import LoadOrder, OffloadOrder, Order, TransferDone
from octavo_gpuworker.transfer_wire import Offloaded, limit_us, offload_entries, sources_of

OFFLOAD_LIMIT_S = 2.0
"""Its blocks cannot be evicted meanwhile, so a stuck kvstore must not hold them for long."""
UNPIN_LIMIT_S = 2.0
FIRST_TELL_S, MOST_TELL_S = 0.1, 5.0
"""Between two tries to give something back."""
SLOTS_AT_ONCE = 64
"""Copies of a load between two looks at the clock."""
T = TypeVar("T")
FAILURES = (grpc.aio.AioRpcError, TimeoutError, ConnectionError)
"""What a kvstore that is absent, dead or slow looks like."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Progress:
    """How far a transfer came: its leading whole run, and when its lookup ended."""

    ok: int = 0
    bytes: int = 0
    looked_up_ns: int = 0
    deserialize_ns: int = 0
    lease: int = 0
    tier: str = ""
    aborted: bool = False


async def _awaited(call: Awaitable[Any]) -> Any:
    return await call


async def _undone(answering: asyncio.Future[Any], undo: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    try:
        answer = await answering
    except FAILURES as error:
        log.debug("a call that nobody waited for failed: %r", error)
        return
    await undo(answer)


async def _pump(call: Any, arrived: asyncio.Queue[Any]) -> None:
    """Every message of a stream, then None or what broke it."""
    try:
        async for message in call:
            await arrived.put(message)
            for behind in message.also:
                await arrived.put(behind)
    except FAILURES as error:
        await arrived.put(error)
    else:
        await arrived.put(None)


class Transfers:
    """Runs on the asyncio loop; hands blocks and ends to the step thread through `post`."""

    def __init__(
        self,
        address: str,
        pool: BlockPool,
        layout: bytes,
        post: Callable[[list[Order | LoadedBlock | TransferDone]], None],
        *,
        exact: bool = False,
    ) -> None:
        """`exact`: blocks that went through a lossy codec are misses, and none is made of this pool's."""
        self._exact = exact
        shape = pool.block_shape
        self._shape = pb.PayloadShape(**shape._asdict()) if shape is not None else None
        self._pool = pool
        self._layout = layout
        self._post = post
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._begun: set[int] = set()  # offloads that the step thread has not come to yet
        self._running: dict[int, tuple[asyncio.Task[None], Progress]] = {}
        self._copying: set[asyncio.Future[Any]] = set()
        self._handing_back: set[asyncio.Task[None]] = set()
        self._arena = ArenaLink(pool)
        self._channel = open_channel(address) if address else None
        self._store = kvstore_pb2_grpc.KvStoreServiceStub(self._channel) if self._channel else None  # type: ignore[no-untyped-call]

    def begin(self, order: OffloadOrder) -> None:
        """Begins an offload ahead of the step thread, which was given the order before; to be called on the loop."""
        self._start(order, time.monotonic_ns())
        self._begun.add(order.xfer_id)

    def start(self, order: OffloadOrder | LoadOrder) -> None:
        """Begins a transfer unless it was begun; may be called from the step thread."""
        self._loop.call_soon_threadsafe(self._start, order, time.monotonic_ns())

    def abort(self, xfer_id: int) -> None:
        """Ends a transfer as soon as no copy of it runs, with what has come whole; may be called from the step thread."""
        self._loop.call_soon_threadsafe(self._abort, xfer_id)

    async def quiesce(self) -> None:
        """Cancels what runs and waits until no copy touches the pool any more. What was cancelled is not told: its epoch is over."""
        running = list(self._tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._begun.clear()
        if self._copying:
            await asyncio.wait(set(self._copying))

    async def store_id(self) -> str:
        """The kvstore's stable name, or empty when none is configured or it does not answer."""
        if self._store is None:
            return ""
        try:
            answer = await self._store.GetStats(pb.GetStatsRequest(), timeout=2.0)
            await self._arena.attach(self._store)
            return str(answer.store_id)
        except FAILURES as error:
            log.debug("kvstore does not answer: %r", error)
            return ""

    async def close(self) -> None:
        await self.quiesce()
        if self._handing_back:
            await asyncio.wait(set(self._handing_back), timeout=UNPIN_LIMIT_S)
        for task in self._handing_back:
            task.cancel()
        self._arena.close()
        if self._channel is not None:
            await self._channel.close(None)

    def _start(self, order: OffloadOrder | LoadOrder, ordered_ns: int) -> None:
        if order.xfer_id in self._begun:
            self._begun.discard(order.xfer_id)
            return
        progress = Progress()
        task = self._loop.create_task(self._run(order, ordered_ns, progress))
        self._tasks[task] = None
        self._running[order.xfer_id] = task, progress
        task.add_done_callback(partial(self._ended, order.xfer_id))

    def _ended(self, xfer_id: int, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if self._running.get(xfer_id, (None,))[0] is task:  # a scheduler that was restarted counts from 1 again
            del self._running[xfer_id]

    def _abort(self, xfer_id: int) -> None:
        if xfer_id in self._running:
            task, progress = self._running[xfer_id]
            if not progress.aborted:
                progress.aborted = True
                task.cancel()

    async def _fence(self, progress: Progress) -> None:
        """What was aborted may have a thread at its blocks still; what an epoch's end cuts off here is not told."""
        try:
            if self._copying:
                await asyncio.wait(set(self._copying))
        except asyncio.CancelledError:
            self._later(self._unpin(progress.lease, set(self._copying)))
            raise

    async def _run(self, order: OffloadOrder | LoadOrder, ordered_ns: int, progress: Progress) -> None:
        """One transfer, and its end whatever became of it."""
        began_ns = progress.looked_up_ns = time.monotonic_ns()
        try:
            if isinstance(order, LoadOrder):
                async with asyncio.timeout(limit_us(order) / 1e6):
                    await self._attached(self._load, order, progress)
            else:
                async with asyncio.timeout(OFFLOAD_LIMIT_S):
                    await self._attached(self._offload, order, progress)
        except FAILURES as error:
            # a miss, a dead store or a timeout costs prefill, never correctness: `ok` says how far it came
            log.debug("transfer %d ended after %d blocks: %r", order.xfer_id, progress.ok, error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if progress.aborted and task is not None and task.uncancel() == 0:
                await self._fence(progress)
            elif task is None or task.cancelling():
                self._later(self._unpin(progress.lease, set(self._copying)))
                raise
            else:  # grpc.aio cancels a call whose request iterator raised; that must not pass for a cancelled transfer
                log.error("transfer %d failed: its blocks could not be read", order.xfer_id)
        except Exception:
            log.exception("transfer %d failed after %d blocks", order.xfer_id, progress.ok)
        lookup_us = (progress.looked_up_ns - began_ns) // 1000
        deserialize_us = progress.deserialize_ns // 1000
        transfer_us = (time.monotonic_ns() - progress.looked_up_ns) // 1000 - deserialize_us
        queue_us = max(0, began_ns - ordered_ns) // 1000
        self._post(
            [
                TransferDone(
                    order.xfer_id,
                    progress.ok,
                    progress.bytes,
                    lookup_us,
                    max(0, transfer_us),
                    progress.tier,
                    queue_us,
                    deserialize_us,
                )
            ]
        )
        self._later(self._unpin(progress.lease))  # on its own: what cancels this transfer must not cancel that

    def _stub(self) -> Any:
        if self._store is None:
            raise ConnectionError("no kvstore configured")
        return self._store

    async def _load(self, order: LoadOrder, progress: Progress) -> None:
        store, count = self._stub(), min(len(order.keys), len(order.blocks))
        keys = order.keys[:count]
        client = self._arena.client
        request = pb.PinRequest(
            keys=pack_keys(keys),
            layout=self._layout,
            limit_us=limit_us(order),
            arena_client=client,
            exact=self._exact,
            sources=sources_of(order, 0),
        )
        lease = await self._answered(store.Pin(request), lambda late: self._unpin(late.lease))
        progress.looked_up_ns, progress.lease = time.monotonic_ns(), lease.lease
        keys = keys[: lease.held]
        slots = lease.slots[: len(keys)]
        for start in range(0, len(slots), SLOTS_AT_ONCE):
            if not await self._take_slots(order, slots[start : start + SLOTS_AT_ONCE], "dram", progress):
                client = 0  # the store finds out what is wrong with a slot when it reads it itself
                break
        if progress.ok < len(keys):
            await self._stream(order, keys, client, progress)

    async def _stream(self, order: LoadOrder, keys: list[bytes], client: int, progress: Progress) -> None:
        """What is left of a load: slots as they are filled from below, or payload."""
        get = pb.GetRequest(
            keys=pack_keys(keys[progress.ok :]),
            layout=self._layout,
            lease=progress.lease,
            arena_client=client,
            exact=self._exact,
            sources=sources_of(order, progress.ok),
            groups=True,
        )
        call = self._stub().Get(get)
        arrived: asyncio.Queue[Any] = asyncio.Queue(SLOTS_AT_ONCE)
        reading = self._loop.create_task(_pump(call, arrived))  # goes on while what has come is copied
        try:
            while progress.ok < len(keys):
                items = [await arrived.get()]
                while not arrived.empty():
                    items.append(arrived.get_nowait())
                if not await self._take(order, keys, items, progress):
                    return
        finally:
            reading.cancel()
            call.cancel()

    async def _take(self, order: LoadOrder, keys: list[bytes], items: list[Any], progress: Progress) -> bool:
        """Takes what has come, in order; False at the end of the stream or at the first item that is not what was asked for."""
        for named, group in itertools.groupby(
            items, key=lambda item: isinstance(item, pb.GetResponse) and item.HasField("slot")
        ):
            run = list(group)
            if named:
                wanted = keys[progress.ok : progress.ok + len(run)]
                if [item.key for item in run] != wanted:
                    return False
                if not await self._take_slots(order, [item.slot for item in run], run[-1].tier, progress):
                    return False
                continue
            for block in run:
                if isinstance(block, Exception):
                    raise block
                began_ns = time.monotonic_ns()
                if block is None or progress.ok == len(keys) or not self._whole(block, keys[progress.ok]):
                    return False
                self._post([LoadedBlock(order.xfer_id, order.blocks[progress.ok], block.payload)])
                progress.ok, progress.tier = progress.ok + 1, block.tier
                progress.bytes += len(block.payload)
                progress.deserialize_ns += time.monotonic_ns() - began_ns
        return True

    async def _take_slots(self, order: LoadOrder, slots: Sequence[Any], tier: str, progress: Progress) -> bool:
        """Copies slots of the arena into the next blocks; False when one was not what the store had said."""
        blocks = order.blocks[progress.ok : progress.ok + len(slots)]
        copied = await self._off_loop(self._arena.copy_out, slots, blocks)
        if copied.payloads:  # of a device: written at the next boundary, in order with its steps
            ready = zip(blocks[: copied.whole], copied.payloads, strict=False)
            self._post([LoadedBlock(order.xfer_id, block, payload) for block, payload in ready])
        progress.ok += copied.whole
        progress.bytes += copied.whole * self._pool.block_bytes
        if copied.whole:
            progress.tier = tier
        return copied.whole == len(slots)

    async def _off_loop(self, call: Callable[..., T], *arguments: Any) -> T:
        """Runs a copy in a thread; `quiesce` waits for it even when the transfer is cancelled."""
        copying = self._loop.run_in_executor(None, call, *arguments)
        self._copying.add(copying)
        copying.add_done_callback(self._copying.discard)
        return await asyncio.shield(copying)

    async def _attached(
        self, transfer: Callable[[Any, Progress], Awaitable[None]], order: Order, progress: Progress
    ) -> None:
        """A transfer with the arena attached where there is one, begun again once when the store turns out to be a new one."""
        await self._arena.attach(self._stub())
        try:
            await transfer(order, progress)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION or progress.ok:
                raise
            self._arena.forget()
            await self._arena.attach(self._stub())
            await transfer(order, progress)

    def _whole(self, block: pb.GetResponse, key: bytes) -> bool:
        whole = (
            block.key == key
            and len(block.payload) == self._pool.block_bytes
            and xxhash.xxh3_64_intdigest(block.payload) == block.checksum
        )
        if not whole:
            log.warning("kvstore sent a block that is not what was asked for: key, length or checksum differ")
        return whole

    async def _unpin(self, lease: int, copying: Collection[asyncio.Future[Any]] = ()) -> None:
        """Ends a lease, once no copy reads from what it holds; 0 is none."""
        if copying:
            await asyncio.wait(copying)
        if lease:
            await self._tell(lambda store: store.Unpin(pb.UnpinRequest(lease=lease), timeout=UNPIN_LIMIT_S))

    async def _tell(self, call: Callable[[Any], Awaitable[Any]]) -> None:
        """Gives something back to the store, again and again while it does not answer: no timer there would.

        A store that was restarted knows nothing of it, which is as good; numbers of leases and clients begin anywhere.
        """
        wait_s = FIRST_TELL_S
        while True:
            try:
                await call(self._stub())
                return
            except grpc.aio.AioRpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    return
            except ConnectionError:
                return  # no kvstore is configured
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, MOST_TELL_S)

    async def _offload(self, order: OffloadOrder, progress: Progress) -> None:
        entries = offload_entries(order)
        if self._arena.client:
            entries = await self._offload_slots(entries, progress)
        if entries:
            answer = await self._stub().Put(self._blocks(entries))
            if answer.refused:
                return
            progress.ok += answer.stored + answer.known
        progress.bytes = progress.ok * self._pool.block_bytes

    async def _offload_slots(self, entries: list[Offloaded], progress: Progress) -> list[Offloaded]:
        """Copies what the arena has room for; returns the rest."""
        store, client = self._stub(), self._arena.client
        keys = pack_keys([entry.key for entry in entries])
        meta = (
            entries[0].meta if entries else None
        )  # for the room; each one's own quota is looked at when it is committed
        length = self._pool.block_bytes
        request = pb.ReserveRequest(arena_client=client, keys=keys, layout=self._layout, meta=meta, length=length)
        answer = await self._answered(store.Reserve(request), lambda late: self._give_up_after(client, late.slots))
        given = list(answer.slots)
        fresh = [(entry, slot) for entry, slot in zip(entries, given, strict=False) if slot.length]
        commit = pb.CommitRequest(arena_client=client, layout=self._layout, shape=self._shape, exact=self._exact)
        try:
            if fresh:
                blocks, slots = [entry.block for entry, _ in fresh], [slot for _, slot in fresh]
                for slot, checksum in zip(slots, await self._off_loop(self._arena.copy_in, blocks, slots), strict=True):
                    slot.checksum = checksum
                commit.filled.extend(
                    pb.FilledSlot(slot=slot, key=entry.key, parent=entry.parent, meta=entry.meta)
                    for entry, slot in fresh
                )
            refused = (await store.Commit(commit)).refused if fresh else 0
        except BaseException:
            self._later(self._give_up_after(client, given, set(self._copying)))
            raise
        if refused:
            return []
        progress.ok += len(given)
        return entries[len(given) :]

    async def _give_up_after(
        self, client: int, given: Sequence[Any], copying: Collection[asyncio.Future[Any]] = ()
    ) -> None:
        """Hands reserved slots back, once no copy writes to them."""
        slots = [slot.slot for slot in given if slot.length]
        if copying:
            await asyncio.wait(copying)
        if slots:
            request = pb.CommitRequest(arena_client=client, layout=self._layout, given_up=slots)
            await self._tell(lambda store: store.Commit(request, timeout=UNPIN_LIMIT_S))

    async def _answered(self, call: Awaitable[Any], undo: Callable[[Any], Coroutine[Any, Any, None]]) -> Any:
        """The answer of a call that takes something of the store; undone when its answer comes after nobody waits any more."""
        answering = asyncio.ensure_future(_awaited(call))
        try:
            return await asyncio.shield(answering)
        except asyncio.CancelledError:
            self._later(_undone(answering, undo))
            raise

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._handing_back.add(task)
        task.add_done_callback(self._handing_back.discard)

    async def _blocks(self, entries: Sequence[Offloaded]) -> AsyncIterator[pb.PutRequest]:
        for entry in entries:
            # the transfer holds the block, so nobody writes it; off the loop, since a device copy waits
            payload = await self._off_loop(self._pool.read_block, entry.block)
            yield pb.PutRequest(
                key=entry.key,
                parent=entry.parent,
                payload=payload,
                checksum=xxhash.xxh3_64_intdigest(payload),
                layout=self._layout,
                meta=entry.meta,
                shape=self._shape,
                exact=self._exact,
            )
