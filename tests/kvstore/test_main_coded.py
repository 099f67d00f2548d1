"""The real process with a codec, encryption and peers: what lies on disk, what a restart finds, what the logs say."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from octavo.packing import pack_keys
from octavo.rpc.channels import open_channel
from octavo.v1 import kvstore_pb2 as pb
from octavo.v1 import kvstore_pb2_grpc
from octavo_kvstore.testing import LAYOUT, key_of

from tests.kvstore.test_main import Process

SECRET = {"deployment.secret": "a secret of our own", "cache.encryption": "aes-gcm"}
TENANT, OTHER = b"t" * 16, b"o" * 16
MARK = b"these bytes are nobody's business "
COUNT = 12


def request(number: int, namespace: bytes = TENANT) -> pb.PutRequest:
    import xxhash

    payload = (MARK + str(number).encode()) * 400
    return pb.PutRequest(
        key=key_of(number),
        payload=payload,
        checksum=xxhash.xxh3_64_intdigest(payload),
        layout=LAYOUT,
        meta=pb.BlockMeta(namespace=namespace),
    )


@asynccontextmanager
async def running(
    folder: Path, **settings: object
) -> AsyncIterator[tuple[Process, kvstore_pb2_grpc.KvStoreServiceStub]]:
    process = Process(folder, **{"cache.dram_bytes": 0, "deployment.log_level": "debug", **settings})
    await process.start()
    try:
        async with open_channel(process.address) as channel:
            yield process, kvstore_pb2_grpc.KvStoreServiceStub(channel)
    finally:
        if process.child.returncode is None:
            process.child.kill()
        await process.child.wait()


async def put(stub: kvstore_pb2_grpc.KvStoreServiceStub, *requests: pb.PutRequest) -> None:
    assert (await stub.Put(iter(requests))).stored == len(requests)
    while True:
        counters = (await stub.GetStats(pb.GetStatsRequest())).counters
        if not counters["write_behind_bytes"] and counters["write_behind_written"] >= len(requests):
            return
        await asyncio.sleep(0.02)


async def held(stub: kvstore_pb2_grpc.KvStoreServiceStub, count: int = COUNT) -> list[int]:
    """Which of the blocks come back, and rightly."""
    found = []
    for number in range(count):
        got = [item async for item in stub.Get(pb.GetRequest(keys=key_of(number), layout=LAYOUT))]
        assert all(item.payload == request(number).payload for item in got)
        found += [number] * len(got)
    return found


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.suffix in (".bin", ".mdb"))


@pytest.mark.parametrize("backend", ["slab", pytest.param("lmdb", marks=pytest.mark.soak)])
async def test_at_rest_there_is_no_plain_byte_and_a_restart_is_warm(tmp_path: Path, backend: str) -> None:
    settings = {**SECRET, "cache.nvme_backend": backend}
    async with running(tmp_path, **settings) as (process, stub):
        await put(stub, *(request(number) for number in range(COUNT)))
        assert await held(stub) == list(range(COUNT))
        process.child.kill()
        await process.child.wait()
    assert MARK not in on_disk(tmp_path) and len(on_disk(tmp_path)) > COUNT * 10_000
    async with running(tmp_path, **settings) as (_, stub):
        assert await held(stub) == list(range(COUNT))
        assert (await stub.GetStats(pb.GetStatsRequest())).counters["decrypt_failed"] == 0
    async with running(tmp_path, **{**settings, "deployment.secret": "another one"}) as (_, stub):
        assert await held(stub) == []
        assert (await stub.GetStats(pb.GetStatsRequest())).counters["decrypt_failed"] == COUNT
    async with running(tmp_path, **settings) as (_, stub):
        assert await held(stub) == list(range(COUNT)), "a wrong secret destroys nothing"


async def test_forgetting_a_tenant_outlives_a_crash_and_a_copy_of_the_disk(tmp_path: Path) -> None:
    async with running(tmp_path, **SECRET) as (process, stub):
        await put(stub, *(request(number, TENANT if number % 2 else OTHER) for number in range(COUNT)))
        copied = {path: path.read_bytes() for path in (tmp_path / "nvme").rglob("*") if path.suffix in (".bin", ".mdb")}
        assert (await stub.Delete(pb.DeleteRequest(namespace=TENANT))).deleted == COUNT // 2
        assert await held(stub) == list(range(0, COUNT, 2))
        process.child.kill()
        await process.child.wait()
    for path, content in copied.items():
        path.write_bytes(content)
    async with running(tmp_path, **SECRET) as (_, stub):
        assert set(await held(stub)) <= set(range(0, COUNT, 2)), "whatever the old files hold, the key is gone"


async def test_no_byte_of_a_block_in_any_log(tmp_path: Path) -> None:
    """At log level debug, with damage on the disk, a refused put, a peer that does not answer and a malformed call."""
    settings = {"kvstore.peers": '{"far": "127.0.0.1:1"}', "kvstore.peer_listen": "127.0.0.1:0", "cache.codec": "zstd"}
    async with running(tmp_path, **settings) as (process, stub):
        await put(stub, *(request(number) for number in range(COUNT)))
        bad = request(99)
        bad.checksum += 1
        assert (await stub.Put(iter([bad]))).refused == 1
        for path in (tmp_path / "nvme").glob("slab-*.bin"):
            content = path.read_bytes().replace(MARK, MARK.upper(), 3)
            path.write_bytes(content)
        await held(stub, 3)
        sources = [pb.BlockSource(store_id="far", first=0, count=2)]
        keys = pack_keys([key_of(200), key_of(201)])
        get = pb.GetRequest(keys=keys, layout=LAYOUT, sources=sources)
        assert [item async for item in stub.Get(get)] == []
        assert (await stub.GetStats(pb.GetStatsRequest())).counters["remote_failed"] == 1
        process.child.terminate()
        await process.child.wait()
    files = [path for path in tmp_path.rglob("*") if path.suffix in (".log", ".jsonl")]
    said = b"".join(path.read_bytes() for path in files)
    assert b"listening on" in said
    piece = MARK[:24]
    for form in (piece, piece.upper(), piece.hex().encode(), base64.b64encode(piece)[:30], repr(piece).encode()):
        assert form not in said


def test_settings_that_cannot_work_name_the_key_and_the_fix() -> None:
    for flags, key in (
        (["--cache.encryption=aes-gcm"], "deployment.secret"),
        (['--cache.tiers=["dram", "valkey"]'], "cache.valkey_url"),
        (['--cache.tiers=["tape"]'], "cache.tiers"),
        (["--cache.codec=gzip"], "cache.codec"),
        (["--cache.valkey_timeout_s=0"], "cache.valkey_timeout_s"),
    ):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "octavo_kvstore", *flags]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
        assert done.returncode == 2 and key in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
