"""CacheService at the scheduler over real grpc.aio, with a chaos worker behind it; and its restart."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from octavo.keys import extend_keys, namespace_root
from octavo.packing import pack_u32, unpack_u32
from octavo.rpc.channels import open_channel
from octavo.v1 import cache_pb2 as pb
from octavo.v1 import cache_pb2_grpc
from octavo_scheduler.policy import Policy
from octavo_scheduler.preloads import cache_wire
from octavo_scheduler.preloads.cache_wire import CacheServicer
from octavo_scheduler.preloads.shelf_link import Shelf

from tests.scheduler.chaos_link import chaos
from tests.scheduler.test_service import LOG, running_cell, running_worker

SECRET = b"secret"
DOCS = pack_u32(range(1, 31))
POLICY = Policy(preload_reserve_tokens=8, pin_share=1.0)


@contextlib.asynccontextmanager
async def cache_of(cell: Any, folder: Path) -> AsyncIterator[Any]:
    """A stub of the servicer beside a running cell; what the folder keeps is restored first."""
    servicer = CacheServicer(cell.driver, SECRET, Shelf(folder, LOG), LOG)
    servicer.restore()
    server = grpc.aio.server()
    cache_pb2_grpc.add_CacheServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        yield cache_pb2_grpc.CacheServiceStub(channel)  # type: ignore[no-untyped-call]
    await server.stop(0)


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code(), raised.value.details() or ""


async def test_put_list_get_pin_evict_and_remove(tmp_path: Path) -> None:
    async with (
        running_cell(POLICY) as cell,
        running_worker(cell, chaos(1, num_blocks=40)),
        cache_of(cell, tmp_path) as stub,
    ):
        await _until_worker(cell)
        put = pb.PutPreloadRequest(tenant="t", name="docs", form="raw", tokens=DOCS)
        code, said = await refused(stub.PutPreload(pb.PutPreloadRequest(tenant="t", name="x", tokens=b"abc")))
        assert code is grpc.StatusCode.INVALID_ARGUMENT and "multiple of 4" in said
        done = await stub.PutPreload(put)
        assert done.preload.state == "ready" and done.preload.pinned and not done.replaced and done.build_us > 0
        assert dict(done.preload.source) == {"computed": 30}
        listed = await stub.ListPreloads(pb.ListPreloadsRequest(tenant="t"))
        assert [item.name for item in listed.preloads] == ["docs"]
        assert listed.pinned_bytes == done.preload.bytes > 0 < listed.pin_quota_bytes
        assert not (await stub.ListPreloads(pb.ListPreloadsRequest(tenant="u"))).preloads
        found = await stub.GetPreload(pb.GetPreloadRequest(tenant="t", name="docs", with_tokens=True, using=True))
        assert unpack_u32(found.preload.token_ids) == list(range(1, 31)) and found.preload.uses == 1
        known = pb.GetPreloadRequest(tenant="t", name="docs", with_tokens=True, known_content=found.preload.content)
        assert (await stub.GetPreload(known)).preload.token_ids == b""
        assert not (await stub.GetPreload(pb.GetPreloadRequest(tenant="u", name="docs"))).found
        off = await stub.PinPreload(pb.PinPreloadRequest(tenant="t", name="docs", pinned=False))
        assert off.found and not off.preload.pinned
        assert (await stub.Evict(pb.EvictRequest(tenant="t", name="docs"))).blocks == done.preload.blocks
        again = await stub.PinPreload(pb.PinPreloadRequest(tenant="t", name="docs", pinned=True))
        assert again.preload.pinned and again.preload.state == "ready"
        assert not (await stub.PinPreload(pb.PinPreloadRequest(tenant="t", name="nobody", pinned=True))).found
        assert (await stub.RemovePreload(pb.RemovePreloadRequest(tenant="t", name="docs"))).found
        assert not list(Shelf(tmp_path, LOG).preloads())


async def test_refusals_name_the_field(tmp_path: Path) -> None:
    async with running_cell(POLICY) as cell, cache_of(cell, tmp_path) as stub:
        put = pb.PutPreloadRequest(tenant="t", name="docs", form="raw", tokens=DOCS)
        assert (await refused(stub.PutPreload(put)))[0] is grpc.StatusCode.UNAVAILABLE
        async with running_worker(cell, chaos(1, num_blocks=40)):
            await _until_worker(cell)
            long = pb.PutPreloadRequest(tenant="t", name="docs", form="raw", tokens=pack_u32([1] * 5000))
            code, said = await refused(stub.PutPreload(long))
            assert code is grpc.StatusCode.INVALID_ARGUMENT and said.startswith("texts: 5000 tokens exceed")
            code, said = await refused(stub.Evict(pb.EvictRequest(tenant="t", tokens=pack_u32([1]))))
            assert code is grpc.StatusCode.INVALID_ARGUMENT and said.startswith("prefix: 1 tokens are less")
            assert (await refused(stub.Evict(pb.EvictRequest(tenant="t", name="no"))))[0] is grpc.StatusCode.NOT_FOUND
            assert not (await stub.Explain(pb.ExplainRequest(tenant="t", request_id="no"))).found


async def test_a_new_scheduler_has_preloads_and_generations_again(tmp_path: Path) -> None:
    worker = chaos(1, num_blocks=40)
    async with running_cell(POLICY) as cell, running_worker(cell, worker), cache_of(cell, tmp_path) as stub:
        await _until_worker(cell)
        assert (await stub.RotateNamespace(pb.RotateNamespaceRequest(tenant="t"))).generation == 1
        await stub.PutPreload(pb.PutPreloadRequest(tenant="t", name="docs", form="raw", tokens=DOCS))
        computed = worker.computed_tokens
    async with running_cell(POLICY) as cell, cache_of(cell, tmp_path) as stub, running_worker(cell, worker):
        await _until_worker(cell)
        assert cell.driver.core.cell.caching.generations == {"t": 1}
        found = (await stub.GetPreload(pb.GetPreloadRequest(tenant="t", name="docs"))).preload
        while found.state != "ready":
            await _breathe()
            found = (await stub.GetPreload(pb.GetPreloadRequest(tenant="t", name="docs"))).preload
        assert found.version == 1 and found.pinned
        assert dict(found.source) == {"hbm": found.blocks * 4} and worker.computed_tokens == computed
        root = namespace_root(worker.hello(0, 1).root_key, SECRET, "t", "", 1)
        keys = extend_keys(root, range(1, 31), 4)
        (live,) = cell.driver.core.cell.fleet.workers.values()
        assert live.index.match_len(keys, len(keys)) == len(keys)
        assert (await stub.RotateNamespace(pb.RotateNamespaceRequest(tenant="t"))).generation == 2


async def test_another_content_after_a_removal_is_fetched_though_its_version_is_the_same(tmp_path: Path) -> None:
    async with (
        running_cell(POLICY) as cell,
        running_worker(cell, chaos(1, num_blocks=40)),
        cache_of(cell, tmp_path) as stub,
    ):
        await _until_worker(cell)
        old = await stub.PutPreload(pb.PutPreloadRequest(tenant="t", name="docs", form="raw", tokens=DOCS))
        await stub.RemovePreload(pb.RemovePreloadRequest(tenant="t", name="docs"))
        other = pack_u32(range(50, 80))
        new = await stub.PutPreload(pb.PutPreloadRequest(tenant="t", name="docs", form="raw", tokens=other))
        assert old.preload.version == new.preload.version == 1
        known = pb.GetPreloadRequest(tenant="t", name="docs", with_tokens=True, known_content=old.preload.content)
        assert (await stub.GetPreload(known)).preload.token_ids == other


async def test_what_was_removed_as_it_became_ready_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_wire, "LOOK_S", 0.3)
    async with (
        running_cell(POLICY) as cell,
        running_worker(cell, chaos(1, num_blocks=40)),
        cache_of(cell, tmp_path) as stub,
    ):
        await _until_worker(cell)
        put = stub.PutPreload(pb.PutPreloadRequest(tenant="t", name="docs", form="raw", tokens=DOCS))
        book = cell.driver.core.cell.caching.book
        while ("t", "docs") not in book.active:
            await asyncio.sleep(0)
        assert (await stub.RemovePreload(pb.RemovePreloadRequest(tenant="t", name="docs"))).found
        await put
        assert not list(Shelf(tmp_path, LOG).preloads())


async def test_a_preload_whose_caller_left_is_kept_all_the_same(tmp_path: Path) -> None:
    async with (
        running_cell(POLICY) as cell,
        running_worker(cell, chaos(1, num_blocks=40)),
        cache_of(cell, tmp_path) as stub,
    ):
        await _until_worker(cell)
        put = stub.PutPreload(pb.PutPreloadRequest(tenant="t", name="docs", form="raw", tokens=DOCS))
        while not list(cell.driver.core.cell.caching.book):
            await asyncio.sleep(0)
        put.cancel()
        async with asyncio.timeout(10):
            while not list(Shelf(tmp_path, LOG).preloads()):
                await _breathe()


async def test_a_removal_that_the_disk_refuses_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        running_cell(POLICY) as cell,
        running_worker(cell, chaos(1, num_blocks=40)),
        cache_of(cell, tmp_path) as stub,
    ):
        await _until_worker(cell)
        await stub.PutPreload(pb.PutPreloadRequest(tenant="t", name="docs", form="raw", tokens=DOCS))
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", _read_only)
            code, said = await refused(stub.RemovePreload(pb.RemovePreloadRequest(tenant="t", name="docs")))
        assert code is grpc.StatusCode.FAILED_PRECONDITION and "Read-only" in said
        assert (await stub.GetPreload(pb.GetPreloadRequest(tenant="t", name="docs"))).found


def _read_only(*_given: object, **_more: object) -> None:
    raise OSError(30, "Read-only file system")


async def _breathe() -> None:
    await asyncio.sleep(0.01)


async def _until_worker(cell: Any) -> None:
    while not cell.driver.core.cell.fleet.workers:
        await _breathe()
