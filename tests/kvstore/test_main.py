"""The real process: kill -9 at any moment, restart, and every value that comes back is right."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from octavo.packing import pack_keys
from octavo.rpc.channels import open_channel
from octavo.v1 import kvstore_pb2 as pb
from octavo.v1 import kvstore_pb2_grpc
from octavo_kvstore.testing import LAYOUT, key_of, make_block, payload_of

BLOCK_BYTES = 368_640


class Process:
    """`python -m octavo_kvstore` on a unix socket."""

    def __init__(self, folder: Path, name: str = "kv", **settings: object) -> None:
        self.address = f"unix:{folder}/{name}.sock"
        given = {
            "deployment.run_dir": folder,
            "kvstore.listen": self.address,
            "kvstore.scheduler": "",
            "cache.dram_bytes": 8 * BLOCK_BYTES,
            "cache.nvme_bytes": 64 * 2**20,
            **settings,
        }
        self.command = [sys.executable, "-m", "octavo_kvstore"]
        for key, value in given.items():
            self.command += [f"--{key}", str(value)]
        self.log = folder / f"{name}.log"

    async def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with self.log.open("ab") as log:
            self.child = await asyncio.create_subprocess_exec(*self.command, env=environment, stderr=log)
        async with asyncio.timeout(30):
            while not await self.is_serving():
                assert self.child.returncode is None, self.log.read_text()
                await asyncio.sleep(0.05)

    async def is_serving(self) -> bool:
        async with open_channel(self.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                answer = await stub.Check(health_pb2.HealthCheckRequest(service="octavo.v1.KvStoreService"), timeout=2)
            except grpc.aio.AioRpcError:
                return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def end(self, signum: signal.Signals) -> int:
        self.child.send_signal(signum)
        return await self.child.wait()

    @contextlib.asynccontextmanager
    async def stub(self) -> AsyncIterator[kvstore_pb2_grpc.KvStoreServiceStub]:
        async with open_channel(self.address) as channel:
            yield kvstore_pb2_grpc.KvStoreServiceStub(channel)


def request(number: int) -> pb.PutRequest:
    block = make_block(number, BLOCK_BYTES)
    return pb.PutRequest(key=block.key, payload=block.payload, checksum=block.checksum, layout=LAYOUT)


async def until_written(stub: kvstore_pb2_grpc.KvStoreServiceStub) -> None:
    """Waits until something has reached LMDB."""
    async with asyncio.timeout(10):
        written = 0.0
        while not written:
            written = (await stub.GetStats(pb.GetStatsRequest())).counters["write_behind_written"]
            await asyncio.sleep(0.005)


async def right_ones(process: Process, numbers: range) -> int:
    """Asks for every block alone; fails when one comes back wrong."""
    found = 0
    async with process.stub() as stub:
        for number in numbers:
            async for item in stub.Get(pb.GetRequest(keys=key_of(number), layout=LAYOUT)):
                assert item.key == key_of(number) and item.payload == payload_of(item.key + LAYOUT, BLOCK_BYTES)
                found += 1
    return found


@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.soak)])
async def test_kill_9_while_writing_leaves_a_warm_and_right_tier(tmp_path: Path, kills: int) -> None:
    process = Process(tmp_path)
    await process.start()
    put = 0
    for kill in range(kills):
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with process.stub() as stub:
                call = stub.Put()
                for step in range(12 + kill % 7):
                    await call.write(request(put))
                    put += 1
                    if step == 8:
                        await until_written(stub)
                assert await process.end(signal.SIGKILL) == -signal.SIGKILL
        await process.start()
        assert await right_ones(process, range(max(0, put - 200), put)) > 0
    async with process.stub() as stub:
        stats = await stub.GetStats(pb.GetStatsRequest())
        assert {tier.name: tier.corrupt for tier in stats.tiers} == {"dram": 0, "nvme": 0}
    assert await process.end(signal.SIGTERM) == 0
    assert "wiped" not in process.log.read_text()


@pytest.mark.parametrize("event_loop", ["uvloop", "asyncio"])
async def test_a_clean_stop_writes_all_and_the_next_start_has_it(tmp_path: Path, event_loop: str) -> None:
    process = Process(tmp_path, **{"deployment.event_loop": event_loop})
    await process.start()
    async with process.stub() as stub:
        response = await stub.Put(request(number) for number in range(40))
        assert response.stored == 40
    assert await process.end(signal.SIGTERM) == 0
    await process.start()
    assert await right_ones(process, range(40)) == 40
    async with process.stub() as stub:
        keys = pack_keys([key_of(number) for number in range(40)])
        there = await stub.Contains(pb.ContainsRequest(keys=keys, layout=LAYOUT))
        assert all(there.tiers)
    assert await process.end(signal.SIGTERM) == 0


async def test_a_volume_smaller_than_the_tier_is_served_by_messages(tmp_path: Path) -> None:
    """No shared memory for the tier, as in a container with a small /dev/shm: one warning, and every block all the same."""
    process = Process(tmp_path, **{"kvstore.arena_path": tmp_path, "cache.dram_bytes": 2**59})
    await process.start()
    async with process.stub() as stub:
        assert (await stub.Put(request(number) for number in range(4))).stored == 4
        assert await stub.AttachArena(pb.AttachArenaRequest(block_bytes=BLOCK_BYTES)) == pb.AttachArenaResponse()
    assert await right_ones(process, range(4)) == 4
    assert await process.end(signal.SIGTERM) == 0
    said = [line for line in process.log.read_text().splitlines() if "are free" in line]
    assert len(said) == 1 and "lower cache.dram_bytes" in said[0] and "blocks travel in messages" in said[0]
    assert not list(tmp_path.glob("octavo-arena-*"))


async def test_a_taken_folder_ends_the_second_process_with_one_line(tmp_path: Path) -> None:
    first, second = Process(tmp_path), Process(tmp_path, "second")
    await first.start()
    with pytest.raises(AssertionError):
        await second.start()
    assert await second.child.wait() == 1
    assert "another kvstore uses this folder" in second.log.read_text()
    assert await first.end(signal.SIGTERM) == 0
