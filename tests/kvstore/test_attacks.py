"""What nobody plans for: a store that stands still, workers that die between copy and answer, other models and other dtypes over one
arena, a folder that is deleted, a disk that fills in the middle of a group, a clock that jumps. Misses are fine; wrong blocks are not.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from octavo.v1 import kvstore_pb2 as pb
from octavo_gpuworker.backends.native_pool import NativePool
from octavo_gpuworker.engine import LoadedBlock
from octavo_gpuworker.orders import LoadOrder, OffloadOrder, TransferDone
from octavo_gpuworker.transfer import Transfers
from octavo_kvstore.block import BlockMeta
from octavo_kvstore.pins import PinTable
from octavo_kvstore.store import Store
from octavo_kvstore.testing import LAYOUT as PLAIN_LAYOUT
from octavo_kvstore.testing import is_right, key_of, make_block
from octavo_kvstore.tier import Put
from octavo_kvstore.tiers.heap import HeapTier
from octavo_kvstore.tiers.slab import SlabTier

from tests.kvstore import dying_worker
from tests.kvstore.dying_worker import BLOCK_BYTES, BLOCKS, LAYOUT, keys_of, payload_of
from tests.kvstore.test_main import Process

LIMIT_US = 400_000


class Worker:
    """A worker's transfers over a pool of its own; what comes back is compared with what its layout wrote."""

    def __init__(
        self,
        address: str,
        layout: bytes = LAYOUT,
        block_bytes: int = BLOCK_BYTES,
        payload: Callable[[bytes], bytes] = payload_of,
    ) -> None:
        self.pool = NativePool(np.zeros((1 + 2 * BLOCKS, block_bytes), np.uint8), 16)
        self._payload = payload
        self._ended: dict[int, asyncio.Future[int]] = {}
        self._number = 0
        self.transfers = Transfers(address, self.pool, layout, self._post)

    def _post(self, items: list[object]) -> None:
        for item in items:
            if isinstance(item, TransferDone):
                self._ended.pop(item.xfer_id).set_result(item.ok_blocks)
            elif isinstance(item, LoadedBlock):
                self.pool.write_block(item.block, item.payload)

    async def put(self, keys: list[bytes]) -> int:
        """How many were taken."""
        for at, key in enumerate(keys):
            self.pool.write_block(1 + at, self._payload(key))
        places = list(range(1, 1 + len(keys)))
        return await self._run(lambda number: OffloadOrder(number, places, keys, [bytes(32), *keys[:-1]]))

    async def load(self, keys: list[bytes]) -> int:
        """How many came; fails when one of them is wrong."""
        rooms = list(range(1 + BLOCKS, 1 + BLOCKS + len(keys)))
        self.pool.array[rooms] = 7
        count = await self._run(lambda number: LoadOrder(number, keys, rooms, LIMIT_US))
        for room, key in zip(rooms[:count], keys, strict=False):
            assert self.pool.read_block(room) == self._payload(key), "a wrong block"
        return count

    async def _run(self, order: Callable[[int], OffloadOrder | LoadOrder]) -> int:
        self._number += 1
        ended = self._ended[self._number] = asyncio.get_running_loop().create_future()
        self.transfers.start(order(self._number))
        return await asyncio.wait_for(ended, 30)


@pytest.fixture
async def process(tmp_path: Path):  # type: ignore[no-untyped-def]
    (tmp_path / "shm").mkdir()
    process = Process(
        tmp_path,
        **{
            "cache.dram_bytes": 64 * BLOCK_BYTES,
            "cache.nvme_bytes": 64 * 2**20,
            "kvstore.arena_path": tmp_path / "shm",
        },
    )
    await process.start()
    yield process
    if process.child.returncode is None:
        process.child.send_signal(signal.SIGCONT)
        assert await process.end(signal.SIGTERM) == 0, process.log.read_text()


async def settled(process: Process) -> dict[str, float]:
    """Its counters once no slot is with anybody and all is written down."""
    async with process.stub() as stub, asyncio.timeout(20):
        while True:
            stats = await stub.GetStats(pb.GetStatsRequest(), timeout=5)
            waits = ("arena_reserved", "arena_lent", "leases", "write_behind_bytes")
            if not any(stats.counters[name] for name in waits):
                return {**stats.counters, **{f"{tier.name}_corrupt": tier.corrupt for tier in stats.tiers}}
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("moment", ["copied", "committed", "loading"])
@pytest.mark.parametrize("rounds", [4, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.timeout(600)
async def test_workers_die_between_copy_and_answer(process: Process, moment: str, rounds: int) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, dying_worker.__file__, process.address, str(rounds), moment,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    out, _ = await child.communicate()
    assert int(out) == rounds
    counters = await settled(process)
    assert counters["dram_corrupt"] == counters["nvme_corrupt"] == counters["corrupt_puts"] == 0
    worker, found = Worker(process.address), 0
    for number in range(rounds):
        found += await worker.load(keys_of(number))
    if moment == "copied":
        assert found == 0, "what was never committed is not there"
    if moment == "loading":
        assert found > 0
    for number in range(1000, 1016):  # every slot can be filled again
        assert await worker.put(keys_of(number)) == BLOCKS == await worker.load(keys_of(number))
    await worker.transfers.close()
    await settled(process)


@pytest.mark.parametrize("still_s", [1.0, pytest.param(30.0, marks=pytest.mark.soak)])
@pytest.mark.timeout(300)
async def test_a_store_stands_still_under_load_and_comes_back(process: Process, still_s: float) -> None:
    workers = [Worker(process.address) for _ in range(3)]
    for number in range(6):
        assert await workers[0].put(keys_of(number)) == BLOCKS
    going, counts = True, {"still": 0, "back": 0}
    phase = ""

    async def stream(worker: Worker, at: int) -> None:
        number = at
        while going:
            number += 1
            if number % 3:
                count = await worker.load(keys_of(number % 6))
                if phase:
                    counts[phase] += count
            else:
                await worker.put(keys_of(100 + number % 20))
            await asyncio.sleep(0.002)

    streams = [asyncio.create_task(stream(worker, at)) for at, worker in enumerate(workers)]
    await asyncio.sleep(0.3)
    process.child.send_signal(signal.SIGSTOP)
    await asyncio.sleep(still_s / 2)
    phase = "still"
    await asyncio.sleep(still_s / 2)
    phase = ""
    process.child.send_signal(signal.SIGCONT)
    assert await asyncio.wait_for(_answers(process), 30)
    phase = "back"
    await asyncio.sleep(0.5)
    going = False
    await asyncio.gather(*streams)
    assert counts["back"] > 0, "it serves again"
    for worker in workers:
        assert await worker.load(keys_of(1)) == BLOCKS
        await worker.transfers.close()
    counters = await settled(process)
    assert counters["dram_corrupt"] == counters["nvme_corrupt"] == counters["corrupt_puts"] == 0


async def _answers(process: Process) -> bool:
    while not await process.is_serving():
        await asyncio.sleep(0.05)
    return True


def other_payload(key: bytes) -> bytes:
    return payload_of(key)[::-1]


async def test_another_model_over_the_same_store_and_arena(process: Process) -> None:
    """Same keys, same size, another layout: what a fingerprint that was forgotten in a key would come to."""
    one, other = Worker(process.address), Worker(process.address, b"m" * 32, payload=other_payload)
    assert await one.put(keys_of(1)) == BLOCKS
    assert await other.load(keys_of(1)) == 0, "another layout is a miss"
    assert await other.put(keys_of(1)) == BLOCKS == await other.load(keys_of(1))
    assert await one.load(keys_of(1)) in (0, BLOCKS), "a copy that is on its way down may live on under its own layout"
    await settled(process)
    for turn in range(6):
        first, second = (one, other) if turn % 2 else (other, one)
        await asyncio.gather(first.put(keys_of(turn)), second.put(keys_of(turn)), first.load(keys_of(turn)))
        await asyncio.gather(first.load(keys_of(turn)), second.load(keys_of(turn)))
    for worker in (one, other):
        await worker.transfers.close()
    counters = await settled(process)
    assert counters["dram_corrupt"] == 0 and counters["held_keys"] <= 7 * BLOCKS


async def test_workers_of_two_dtypes_share_a_store(process: Process) -> None:
    """The first one's blocks fit the slots; the other's, twice as large, travel in messages and lie beside them."""

    def twice(key: bytes) -> bytes:
        return payload_of(key) + other_payload(key)

    half, full = Worker(process.address), Worker(process.address, b"f" * 32, 2 * BLOCK_BYTES, twice)
    for number in range(40):  # more than DRAM holds of either
        counts = await asyncio.gather(half.put(keys_of(number)), full.put(keys_of(1000 + number)))
        assert counts == [BLOCKS, BLOCKS]
    await settled(process)
    for number in range(30, 40):
        counts = await asyncio.gather(half.load(keys_of(number)), full.load(keys_of(1000 + number)))
        assert counts == [BLOCKS, BLOCKS]
    assert await half.load(keys_of(1039)) == 0 == await full.load(keys_of(39))
    for worker in (half, full):
        await worker.transfers.close()
    counters = await settled(process)
    assert counters["dram_corrupt"] == counters["nvme_corrupt"] == 0


async def test_the_folder_is_deleted_under_it(process: Process, tmp_path: Path) -> None:
    worker = Worker(process.address)
    for number in range(40):
        assert await worker.put(keys_of(number)) == BLOCKS
    await settled(process)
    shutil.rmtree(tmp_path / "nvme")
    for number in range(40):
        await worker.load(keys_of(number))
    for number in range(100, 104):
        assert await worker.put(keys_of(number)) == BLOCKS == await worker.load(keys_of(number)), "DRAM goes on"
    await worker.transfers.close()
    assert await process.end(signal.SIGTERM) == 0
    await process.start()
    worker = Worker(process.address)
    assert await worker.put(keys_of(1)) == BLOCKS == await worker.load(keys_of(1))
    await settled(process)
    assert (tmp_path / "nvme" / "data.mdb").exists()
    await worker.transfers.close()


@pytest.mark.parametrize("fails_at", [0, 5, 11])
def test_the_disk_fills_in_the_middle_of_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    tier = SlabTier(tmp_path, 16 * 2**20)
    tier.put_many([make_block(number, 60_000) for number in range(20)])
    write, written = SlabTier._write_payload, []

    def fill(self, slot, payload):  # type: ignore[no-untyped-def]
        if len(written) == fails_at:
            written.append(None)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(slot)
        write(self, slot, payload)

    monkeypatch.setattr(SlabTier, "_write_payload", fill)
    outcomes, evicted = tier.put_many([make_block(number, 60_000) for number in range(100, 112)])
    held = set(tier.keys())
    assert outcomes == [Put.STORED] * 12 and tier.write_errors == 1 and tier.wipes == 0
    assert all(is_right(block) for key in held if (block := tier.get(key, PLAIN_LAYOUT))) and tier.stats().corrupt == 0
    assert all(key_of(number) in held for number in range(100, 112)) and not held & set(evicted)
    (file,) = tier._space._files.values()
    places = [entry.place.number for _, entry in tier._index.entries()]
    every = sorted([*places, *file.free, *file.holes])
    assert every == list(range(file.slots)), "each slot is used once, free, or given back"
    tier.close()
    again = SlabTier(tmp_path, 16 * 2**20)
    assert set(again.keys()) == held
    again.close()


def test_the_clock_jumps(tmp_path: Path) -> None:
    """A year ahead and back, and a day back: what has no limit is never lost; what has one never outlives it."""
    start_s, now_s = 1_800_000_000.0, [1_800_000_000.0]
    pins = PinTable()
    nvme = SlabTier(tmp_path, 4 * 2**20, pins.is_pinned, clock_s=lambda: now_s[0])
    heap = HeapTier(2**20, pins.is_pinned, clock_s=lambda: now_s[0])
    store = Store(heap, nvme, pins, wall_s=lambda: now_s[0])
    for number in range(8):
        limit = {"expires_s": int(start_s) + 600} if number % 2 else {}
        block = make_block(number, 8000)
        store.put(type(block)(block.key, b"", block.layout, block.checksum, block.payload, BlockMeta(**limit)))
    lease, held = store.pin([key_of(0), key_of(2)], PLAIN_LAYOUT, 30.0)
    assert held == 2 and store.flush(10)
    for jump_s in (-86_400.0, 365 * 86_400.0, 0.0, 601.0, 0.0):
        now_s[0] = start_s + jump_s
        store.sweep()
        found = [number for number in range(8) if store.get(key_of(number), PLAIN_LAYOUT)]
        assert [number for number in found if number % 2 == 0] == [0, 2, 4, 6]
        assert not [number for number in found if number % 2], "a limited life ends at a jump, and does not come back"
        store.expire_pins()
        assert store.counters()["leases"] == 1, "leases go by a clock that nobody sets"
    store.unpin(lease)
    store.close()


async def test_watched_through_kills_the_directory_is_exact(tmp_path: Path) -> None:
    """Encrypted, with forgotten tenants: after each kill -9 a watcher's directory is what the store has, and of a tenant that was
    forgotten before it nothing is.
    """
    tags = [bytes([65 + tenant]) * 16 for tenant in range(3)]
    process = Process(
        tmp_path,
        **{
            "cache.encryption": "aes-gcm",
            "deployment.secret": "a secret of this test",
            "cache.dram_bytes": 30 * 8192,
            "kvstore.arena_path": "",
        },
    )
    numbers = range(60)
    for turn in range(3):
        await process.start()
        async with process.stub() as stub:
            gone = tags[turn % 3]
            blocks = [make_block(number, 8000) for number in numbers]
            metas = [pb.BlockMeta(namespace=tags[number % 3]) for number in numbers]
            await stub.Put(
                pb.PutRequest(key=b.key, payload=b.payload, checksum=b.checksum, layout=b.layout, meta=meta)
                for b, meta in zip(blocks, metas, strict=True)
            )
            await stub.Delete(pb.DeleteRequest(keys=b"".join(key_of(number) for number in range(turn, 60, 7))))
            await stub.Delete(pb.DeleteRequest(namespace=gone))
            await asyncio.sleep(0.02 * turn)
        await process.end(signal.SIGKILL)
        raw = b"".join(path.read_bytes() for path in (tmp_path / "nvme").iterdir() if path.is_file())
        assert not any(bytes(block.payload[:64]) in raw for block in blocks), "nothing lies there in the clear"
        await process.start()
        async with process.stub() as stub:
            places: dict[bytes, set[str]] = {}
            async for message in stub.WatchBlocks(pb.WatchBlocksRequest()):
                for change in message.changes:
                    (
                        places.setdefault(change.key, set()).discard
                        if change.removed
                        else places.setdefault(change.key, set()).add
                    )(change.tier)
                if message.whole:
                    break
            held: set[bytes] = set()
            for number in numbers:
                async for item in stub.Get(pb.GetRequest(keys=key_of(number), layout=PLAIN_LAYOUT)):
                    assert item.payload == make_block(number, 8000).payload
                    held.add(item.key)
            assert {key for key, tiers in places.items() if tiers} == held
            assert not held & {key_of(number) for number in numbers if tags[number % 3] == gone}
        await process.end(signal.SIGKILL if turn % 2 else signal.SIGTERM)


@pytest.mark.parametrize("seconds", [2.0])
async def test_many_workers_at_once_with_the_disk_s_way_of_reading_changing(process: Process, seconds: float) -> None:
    """Chains on disk are read in lanes and spread, by several workers at once, while others push blocks out."""
    workers = [Worker(process.address) for _ in range(3)]
    for number in range(60):
        assert await workers[number % 3].put(keys_of(number)) == BLOCKS
    until_s = time.monotonic() + seconds

    async def stream(worker: Worker, at: int) -> int:
        total = 0
        while time.monotonic() < until_s:
            at = (at * 7 + 11) % 60
            total += await worker.load(keys_of(at))
        return total

    assert min(await asyncio.gather(*(stream(worker, at) for at, worker in enumerate(workers)))) > 0
    for worker in workers:
        await worker.transfers.close()
    counters = await settled(process)
    assert counters["dram_corrupt"] == counters["nvme_corrupt"] == 0
