"""octavo.v1.CacheService at the scheduler: checks, feeds the core, waits for a build, keeps the shelf."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NoReturn

import grpc
import grpc.aio
from octavo.keys import extend_keys, namespace_mac, namespace_root, namespace_tag
from octavo.packing import pack_u32
from octavo.v1 import cache_pb2 as pb
from octavo.v1 import cache_pb2_grpc
from octavo.v1 import worker_pb2 as wpb

from octavo_scheduler.driver import Driver
from octavo_scheduler.fleet import Worker
from octavo_scheduler.preloads import build
from octavo_scheduler.preloads.book import Preload
from octavo_scheduler.preloads.cache_events import (
    CacheEvicted,
    CacheResult,
    NamespaceRotated,
    PreloadPinned,
    PreloadPut,
    PreloadRemoved,
    PreloadUsed,
)
from octavo_scheduler.preloads.explain import explain
from octavo_scheduler.preloads.quota import quota_bytes
from octavo_scheduler.preloads.shelf_link import Shelf
from octavo_scheduler.wire import WireError, tokens_array

LOOK_S = 0.01
GREEDY = wpb.SamplingParams(temperature=0.0, top_p=1.0, repetition_penalty=1.0, logprobs=-1).SerializeToString()
Context = grpc.aio.ServicerContext[Any, Any]


class CacheServicer(cache_pb2_grpc.CacheServiceServicer):
    """For gateways: the tenant of a request is taken as said."""

    def __init__(self, driver: Driver, secret: bytes, shelf: Shelf, log: logging.Logger) -> None:
        self._driver = driver
        self._secret = secret
        self._shelf = shelf
        self._log = log
        self._keeping: set[asyncio.Task[None]] = set()

    def restore(self) -> None:
        """What an earlier scheduler kept. Raises OctavoError when the generations cannot be read."""
        driver = self._driver
        for tenant, generation in self._shelf.generations().items():
            mac = namespace_mac(self._secret, tenant, generation)
            driver.feed(NamespaceRotated(driver.clock_us(), tenant, generation, mac, restored=True))
        for kept in self._shelf.preloads():
            generation = self._generation(kept.tenant)
            driver.feed(
                PreloadPut(
                    driver.clock_us(),
                    kept.tenant,
                    kept.name,
                    kept.version,
                    kept.form,
                    kept.prompt,
                    namespace_mac(self._secret, kept.tenant, generation),
                    GREEDY,
                    kept.salt,
                    generation,
                    namespace_tag(self._secret, kept.tenant),
                    kept.pinned,
                    restored=True,
                    root_key=kept.root_key,
                )
            )

    # -- preloads ------------------------------------------------------------------------------------------------------

    async def PutPreload(self, request: pb.PutPreloadRequest, context: Context) -> pb.PutPreloadResponse:
        driver, cell = self._driver, self._driver.core.cell
        tokens = await self._tokens(request.tokens, context)
        why = build.refusal(cell, request.tenant, request.name, len(tokens))
        if why:
            await self._refuse(context, why)
        book, generation = cell.caching.book, self._generation(request.tenant)
        before = book.active.get((request.tenant, request.name))
        began_us = driver.clock_us()
        driver.feed(
            PreloadPut(
                began_us,
                request.tenant,
                request.name,
                book.next_version(request.tenant, request.name),
                request.form,
                tokens,
                namespace_mac(self._secret, request.tenant, generation),
                GREEDY,
                request.salt,
                generation,
                namespace_tag(self._secret, request.tenant),
            )
        )
        preload = book.pending.get((request.tenant, request.name)) or book.active[request.tenant, request.name]
        await self._until_built(preload, context)
        await self._keep(preload, context)
        return pb.PutPreloadResponse(
            preload=self._message(preload),
            replaced=before is not None and before is not preload,
            build_us=driver.clock_us() - began_us,
        )

    async def _until_built(self, preload: Preload, context: Context) -> None:
        """Ends the call when it failed, or when another content of the same name overtook it."""
        try:
            await self._settled(preload)
        except asyncio.CancelledError:  # its caller has left; it comes to serve all the same
            task = asyncio.ensure_future(self._keep_later(preload))
            self._keeping.add(task)
            task.add_done_callback(self._keeping.discard)
            raise
        if preload.state == "building":
            await context.abort(grpc.StatusCode.ABORTED, "another content of this name was put meanwhile")
        if preload.state == "failed":
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"the preload could not be computed: {preload.why}")

    def _is_known(self, preload: Preload) -> bool:
        book, name = self._driver.core.cell.caching.book, (preload.tenant, preload.name)
        return preload in (book.pending.get(name), book.active.get(name))

    async def _settled(self, preload: Preload) -> None:
        """Returns when it is built, has failed, or is known no more."""
        while preload.state == "building":
            if not self._is_known(preload):
                return
            await asyncio.sleep(LOOK_S)

    async def _keep_later(self, preload: Preload) -> None:
        """`_keep` for nobody who waits."""
        await self._settled(preload)
        if preload.state == "ready" and self._is_known(preload):
            try:
                self._shelf.keep(preload)
            except OSError as error:
                self._log.warning("a preload serves that a restart will forget: %s", error)

    async def ListPreloads(self, request: pb.ListPreloadsRequest, context: Context) -> pb.ListPreloadsResponse:
        cell = self._driver.core.cell
        size = max((worker.block_bytes for worker in cell.fleet.workers.values()), default=0)
        return pb.ListPreloadsResponse(
            preloads=[self._message(item) for item in cell.caching.book.of_tenant(request.tenant)],
            pinned_bytes=cell.caching.pinned_blocks(request.tenant) * size,
            pin_quota_bytes=quota_bytes(cell, request.tenant),
        )

    async def GetPreload(self, request: pb.GetPreloadRequest, context: Context) -> pb.GetPreloadResponse:
        preload = self._driver.core.cell.caching.book.named(request.tenant, request.name)
        if preload is None:
            return pb.GetPreloadResponse()
        if request.using:
            self._driver.feed(PreloadUsed(self._driver.clock_us(), request.tenant, request.name))
        message = self._message(preload)
        if request.with_tokens and request.known_content != preload.content:
            message.token_ids = pack_u32(preload.prompt)
        return pb.GetPreloadResponse(found=True, preload=message)

    async def RemovePreload(self, request: pb.RemovePreloadRequest, context: Context) -> pb.RemovePreloadResponse:
        try:  # from the disk first: a restart must never bring back what was removed
            self._shelf.forget(request.tenant, request.name)
        except OSError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"the removal cannot be kept: {error}")
        result = self._fed(PreloadRemoved(self._driver.clock_us(), request.tenant, request.name))
        return pb.RemovePreloadResponse(found=result.found, blocks=result.blocks)

    async def PinPreload(self, request: pb.PinPreloadRequest, context: Context) -> pb.PinPreloadResponse:
        cell = self._driver.core.cell
        preload = cell.caching.book.named(request.tenant, request.name)
        if preload is None:
            return pb.PinPreloadResponse()
        if request.pinned and (why := build.refusal(cell, request.tenant, request.name, len(preload.prompt))):
            await self._refuse(context, why)
        self._fed(PreloadPinned(self._driver.clock_us(), request.tenant, request.name, request.pinned))
        await self._until_built(preload, context)
        await self._keep(preload, context)
        return pb.PinPreloadResponse(found=True, preload=self._message(preload))

    # -- eviction and explanations -------------------------------------------------------------------------------------

    async def Evict(self, request: pb.EvictRequest, context: Context) -> pb.EvictResponse:
        key = b""
        if request.tokens:
            worker = await self._worker(context)
            tokens = await self._tokens(request.tokens, context)
            generation = self._generation(request.tenant)
            root = namespace_root(worker.hello.root_key, self._secret, request.tenant, request.salt, generation)
            keys = extend_keys(root, tokens, worker.block_tokens)
            if not keys:
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"prefix: {len(tokens)} tokens are less than one block of {worker.block_tokens}; give more of the text",
                )
            key = keys[-1]
        tag = namespace_tag(self._secret, request.tenant)
        result = self._fed(CacheEvicted(self._driver.clock_us(), request.tenant, key, request.name, tag))
        if request.name and not result.found:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"name: {request.name[:128]} is no preload; list them")
        for preload in self._driver.core.cell.caching.book.of_tenant(request.tenant):
            if preload.state == "evicted":
                await self._keep(preload, context)
        return pb.EvictResponse(blocks=result.blocks, stores=result.stores)

    async def RotateNamespace(self, request: pb.RotateNamespaceRequest, context: Context) -> pb.RotateNamespaceResponse:
        caching = self._driver.core.cell.caching
        generation = self._generation(request.tenant) + 1
        try:  # on the disk first: a restart must never bring the old namespace back
            self._shelf.keep_generations({**caching.generations, request.tenant: generation})
        except OSError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"the rotation cannot be kept: {error}")
        mac, tag = namespace_mac(self._secret, request.tenant, generation), namespace_tag(self._secret, request.tenant)
        result = self._fed(NamespaceRotated(self._driver.clock_us(), request.tenant, generation, mac, tag))
        self._log.info("namespace of a tenant rotated to generation %d", generation)
        return pb.RotateNamespaceResponse(
            generation=generation, blocks=result.blocks, stores=result.stores, preloads=result.preloads
        )

    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainResponse:
        cell = self._driver.core.cell
        known = cell.registry.find(request.tenant, request.request_id)
        if known is None:
            return pb.ExplainResponse()
        found = explain(cell, known, (await self._worker(context)).block_tokens)
        return pb.ExplainResponse(
            found=True,
            reason=found.reason,
            message=found.message,
            prompt_tokens=found.prompt_tokens,
            cached_tokens=found.cached_tokens,
            shared_tokens=found.shared_tokens,
            left_at=found.left_at,
            nearest=found.nearest,
            around_from=found.around_from,
            own=pack_u32(found.own or ()),
            other=pack_u32(found.other or ()),
        )

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _fed(self, event: Any) -> CacheResult:
        self._driver.feed(event)
        return self._driver.core.cell.caching.result

    def _generation(self, tenant: str) -> int:
        return self._driver.core.cell.caching.generations.get(tenant, 0)

    async def _worker(self, context: Context) -> Worker:
        workers = self._driver.core.cell.fleet.accepting()
        if not workers:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no worker is ready; retry")
        return workers[0]

    async def _tokens(self, packed: bytes, context: Context) -> Any:
        try:
            return tokens_array(packed, "tokens")
        except WireError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def _refuse(self, context: Context, why: str) -> NoReturn:
        code = grpc.StatusCode.UNAVAILABLE if "retry" in why else grpc.StatusCode.INVALID_ARGUMENT
        code = grpc.StatusCode.RESOURCE_EXHAUSTED if "tenants.limits" in why else code
        await context.abort(code, why)
        raise AssertionError("abort raises")

    async def _keep(self, preload: Preload, context: Context) -> None:
        if self._driver.core.cell.caching.book.named(preload.tenant, preload.name) is not preload:
            return  # removed or replaced between its end and our look at it: no restart may bring it back
        try:
            self._shelf.keep(preload)
        except OSError as error:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the preload serves now, but a restart of the scheduler will forget it: {error}",
            )

    def _message(self, preload: Preload) -> pb.Preload:
        fleet = self._driver.core.cell.fleet
        worker = fleet.workers.get(preload.epoch)
        size = worker.block_bytes if worker is not None else 0
        return pb.Preload(
            tenant=preload.tenant,
            name=preload.name,
            version=preload.version,
            form=preload.form,
            salt=preload.salt,
            state=preload.state,
            why=preload.why,
            tokens=len(preload.prompt),
            blocks=len(preload.keys),
            bytes=len(preload.keys) * size,
            pinned=bool(preload.held_blocks) and preload.held_blocks == len(preload.keys),
            worker=worker.worker_id if worker is not None else "",
            uses=preload.uses,
            age_us=max(0, self._driver.core.cell.now_us - preload.since_us),
            source=preload.source,
            content=preload.content,
        )
