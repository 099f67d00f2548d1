"""octavo.v1.CacheService at the gateway: says whose cache it is, makes tokens of text, and passes the call on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc.aio
from octavo.errors import InvalidRequest, OctavoError, UnknownRequest
from octavo.packing import pack_u32, unpack_u32
from octavo.v1 import cache_pb2 as pb
from octavo.v1 import cache_pb2_grpc

from octavo_gateway import sampling_checks as check
from octavo_gateway.admission import Admission
from octavo_gateway.caching.cache_link import CacheLink
from octavo_gateway.caching.preloads import preload_ids
from octavo_gateway.caching.rules import MAX_SALT_CHARS, preload_name
from octavo_gateway.release_gate import Gate
from octavo_gateway.request_bytes import TolerantServer
from octavo_gateway.tenants import TenantDirectory, own_id, wire_id
from octavo_gateway.tokenizer import THREAD_TEXT_CHARS

BUILD_TIMEOUT_S: Final = 3600.0
MAX_TENANT_CHARS: Final = 256
Context = grpc.aio.ServicerContext[Any, Any]
Abort = Callable[[Any, OctavoError], Awaitable[Any]]


class CacheServicer(cache_pb2_grpc.CacheServiceServicer):
    """`api_key` tells a call's key, `abort` ends one with a rich status."""

    def __init__(
        self,
        link: CacheLink,
        admission: Admission,
        tenants: TenantDirectory,
        gate: Gate,
        api_key: Callable[[Any], str],
        abort: Abort,
    ) -> None:
        self._link = link
        self._admission = admission
        self._tenants = tenants
        self._gate = gate
        self._api_key = api_key
        self._abort = abort

    async def PutPreload(self, request: pb.PutPreloadRequest, context: Context) -> Any:
        async def answer() -> Any:
            self._own(request, context)
            preload_name("name", request.name)
            check.name("salt", request.salt, MAX_SALT_CHARS)
            request.form = request.form or "system"
            request.tokens = await self._tokens(list(request.texts), request.form)
            del request.texts[:]
            return await self._link.ask("PutPreload", request, _remaining_s(context))

        return await self._answer(context, answer)

    async def ListPreloads(self, request: pb.ListPreloadsRequest, context: Context) -> Any:
        return await self._pass_on("ListPreloads", request, context)

    async def GetPreload(self, request: pb.GetPreloadRequest, context: Context) -> Any:
        request.with_tokens, request.using = False, False
        return await self._pass_on("GetPreload", request, context)

    async def RemovePreload(self, request: pb.RemovePreloadRequest, context: Context) -> Any:
        return await self._pass_on("RemovePreload", request, context)

    async def PinPreload(self, request: pb.PinPreloadRequest, context: Context) -> Any:
        return await self._pass_on("PinPreload", request, context, _remaining_s(context))

    async def Evict(self, request: pb.EvictRequest, context: Context) -> Any:
        async def answer() -> Any:
            self._own(request, context)
            if sum(map(bool, (request.name, request.prefix, request.whole_tenant))) != 1:
                raise InvalidRequest("name: send one of name, prefix and whole_tenant", field="name")
            check.name("salt", request.salt, MAX_SALT_CHARS)
            request.tokens = b""
            if request.name:
                preload_name("name", request.name)
            if request.prefix:
                request.tokens = await self._tokens([request.prefix], request.form or "raw")
                request.prefix = ""
            return await self._link.ask("Evict", request)

        return await self._answer(context, answer)

    async def RotateNamespace(self, request: pb.RotateNamespaceRequest, context: Context) -> Any:
        async def answer() -> Any:
            self._own(request, context)
            if request.tenant not in (known := self._tenants.names()):
                raise check.invalid("tenant", f"{request.tenant!r} is unknown; there are: {', '.join(known)}")
            return await self._link.ask("RotateNamespace", request)

        return await self._answer(context, answer)

    async def Explain(self, request: pb.ExplainRequest, context: Context) -> Any:
        async def answer() -> Any:
            self._own(request, context)
            tenant, name = request.tenant, request.request_id
            if not check.name("request_id", name, 128):
                raise check.invalid("request_id", "it is empty; send the id of Started")
            request.request_id = wire_id(tenant, name)
            found: pb.ExplainResponse = await self._link.ask("Explain", request)
            if not found.found:
                raise UnknownRequest(
                    f"request {name!r} is not known here, or its record has been dropped; `octavo top` lists recent ids",
                    field="request_id",
                )
            shown = own_id(tenant, found.nearest)
            found.message = found.message.replace(found.nearest, shown) if found.nearest else found.message
            found.nearest = shown
            decode = self._admission.tokenizer.decode
            found.own_text = decode(unpack_u32(found.own), skip_special_tokens=False)
            found.other_text = decode(unpack_u32(found.other), skip_special_tokens=False)
            return found

        return await self._answer(context, answer)

    async def _pass_on(self, method: str, request: Any, context: Context, timeout_s: float = 5.0) -> Any:
        async def answer() -> Any:
            self._own(request, context)
            if hasattr(request, "name"):
                preload_name("name", request.name)
            return await self._link.ask(method, request, timeout_s)

        return await self._answer(context, answer)

    def _own(self, request: Any, context: Context) -> None:
        """Fills in whose cache it is. InvalidRequest when it is another tenant's and the caller no admin."""
        caller = self._tenants.tenant_of(self._api_key(context))
        self._gate.check()
        if request.tenant not in ("", caller) and not self._tenants.sees_all(caller):
            raise InvalidRequest("tenant: is not yours; only an admin's key may name another", field="tenant")
        if len(request.tenant) > MAX_TENANT_CHARS:
            raise check.invalid("tenant", f"{len(request.tenant)} characters; use at most {MAX_TENANT_CHARS}")
        request.tenant = request.tenant or caller

    async def _tokens(self, texts: list[str], form: str) -> bytes:
        """Packed ids; long texts in a thread, for they take seconds."""
        if sum(map(len, texts)) < THREAD_TEXT_CHARS:
            return pack_u32(preload_ids(self._admission, texts, form))
        return pack_u32(await asyncio.to_thread(preload_ids, self._admission, texts, form))

    async def _answer(self, context: Context, answer: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await answer()
        except OctavoError as error:
            return await self._abort(context, error)


def _remaining_s(context: Context) -> float:
    remaining = context.time_remaining()
    return BUILD_TIMEOUT_S if remaining is None else min(remaining, BUILD_TIMEOUT_S)


def register_cache(servicer: CacheServicer, server: grpc.aio.Server, abort: Abort, max_body_bytes: int) -> None:
    """Puts every method on the server; bytes that are no message get INVALID_ARGUMENT."""
    tolerant = TolerantServer(server, abort, max_body_bytes)
    cache_pb2_grpc.add_CacheServiceServicer_to_server(servicer, tolerant)  # type: ignore[no-untyped-call]
