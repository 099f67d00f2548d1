"""The way to the scheduler's CacheService, over a channel that others own."""

from __future__ import annotations

from typing import Any, Final

import grpc
import grpc.aio
from octavo.errors import FeatureOff, InvalidRequest, OctavoError, Overloaded, Unavailable, UnknownPreload
from octavo.packing import unpack_u32
from octavo.v1 import cache_pb2 as pb
from octavo.v1 import cache_pb2_grpc

from octavo_gateway.caching.preloads import Preloaded

ASK_TIMEOUT_S: Final = 5.0


class CacheLink:
    """Asks; implements `PreloadSource`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = cache_pb2_grpc.CacheServiceStub(channel)  # type: ignore[no-untyped-call]

    async def use(self, tenant: str, name: str, known_content: bytes) -> Preloaded | None:
        request = pb.GetPreloadRequest(
            tenant=tenant, name=name, with_tokens=True, known_content=known_content, using=True
        )
        answer: pb.GetPreloadResponse = await self.ask("GetPreload", request)
        if not answer.found:
            return None
        found = answer.preload
        return Preloaded(found.content, found.form, found.salt, tuple(unpack_u32(found.token_ids)))

    async def ask(self, method: str, request: Any, timeout_s: float = ASK_TIMEOUT_S) -> Any:
        """One call. Raises what the status says: InvalidRequest, UnknownPreload, Overloaded, FeatureOff, Unavailable."""
        try:
            return await getattr(self._stub, method)(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise _error(error) from error


def _error(error: grpc.aio.AioRpcError) -> OctavoError:
    said = error.details() or error.code().name
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidRequest(said, field=said.partition(":")[0])
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        reason = "rejected-tenant-tokens" if "tenants.limits" in said else "rejected-pin-quota"
        return Overloaded(said, reason=reason, field=said.partition(":")[0])
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return UnknownPreload(said, field="name")
    if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
        return FeatureOff(said)
    return Unavailable(f"the scheduler does not answer ({said}); it may be restarting", retry_after_s=1.0)
