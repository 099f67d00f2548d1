"""AsyncCache: what people do with cached KV beside asking: preloads, eviction, rotation, explanations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import grpc.aio

from octavo.client.faults import error_from
from octavo.client.targets import dial_address
from octavo.packing import unpack_u32
from octavo.rpc.channels import open_channel
from octavo.v1 import cache_pb2 as pb
from octavo.v1 import cache_pb2_grpc

ASK_TIMEOUT_S = 10.0
BUILD_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Preload:
    """Documents whose KV is kept. `source`: where the tokens came from when it was last built (hbm, dram, nvme, computed)."""

    tenant: str
    name: str
    version: int
    form: str
    salt: str
    state: str
    why: str
    tokens: int
    blocks: int
    bytes: int
    pinned: bool
    worker: str
    uses: int
    age_s: float
    source: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Preloaded:
    """What a put came to: `build_s` until requests got the new content."""

    preload: Preload
    replaced: bool
    build_s: float


@dataclass(frozen=True, slots=True)
class PreloadList:
    """The preloads of a tenant and its pin quota."""

    preloads: tuple[Preload, ...]
    pinned_bytes: int
    pin_quota_bytes: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """Blocks that left workers' pools, and how many kvstores were told."""

    blocks: int
    stores: int


@dataclass(frozen=True, slots=True)
class Rotated:
    """A tenant's new namespace generation, and what was thrown out for it."""

    generation: int
    blocks: int
    stores: int
    preloads: int


@dataclass(frozen=True, slots=True)
class CacheExplanation:
    """Where a request left the nearest cached prefix (`left_at`: the first token not found), and why."""

    reason: str
    message: str
    prompt_tokens: int
    cached_tokens: int
    shared_tokens: int
    left_at: int
    nearest: str
    around_from: int
    own_ids: tuple[int, ...]
    other_ids: tuple[int, ...]
    own_text: str
    other_text: str


class AsyncCache:
    """Speaks to one gateway. Use `async with`. Every method raises the exceptions of `octavo.errors`.

    `tenant` names another tenant than the key's; only an admin's key may.
    """

    def __init__(self, address: str, *, api_key: str = "", tenant: str = "") -> None:
        self._address = dial_address(address)
        self._metadata = [("authorization", f"Bearer {api_key}")] if api_key else []
        self._tenant = tenant
        self._channel = open_channel(self._address)
        self._stub: Any = cache_pb2_grpc.CacheServiceStub(self._channel)  # type: ignore[no-untyped-call]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close(None)

    async def preload(
        self,
        name: str,
        texts: Sequence[str],
        *,
        form: str = "system",
        salt: str = "",
        timeout_s: float = BUILD_TIMEOUT_S,
    ) -> Preloaded:
        """Keeps documents under a name; returns once requests that name it get this content."""
        request = pb.PutPreloadRequest(tenant=self._tenant, name=name, texts=texts, form=form, salt=salt)
        answer: pb.PutPreloadResponse = await self._ask(self._stub.PutPreload, request, timeout_s)
        return Preloaded(_preload(answer.preload), answer.replaced, answer.build_us / 1e6)

    async def preloads(self) -> PreloadList:
        """All of the tenant."""
        answer: pb.ListPreloadsResponse = await self._ask(
            self._stub.ListPreloads, pb.ListPreloadsRequest(tenant=self._tenant)
        )
        found = tuple(_preload(item) for item in answer.preloads)
        return PreloadList(found, answer.pinned_bytes, answer.pin_quota_bytes)

    async def stat(self, name: str) -> Preload | None:
        """One preload; None: unknown."""
        request = pb.GetPreloadRequest(tenant=self._tenant, name=name)
        answer: pb.GetPreloadResponse = await self._ask(self._stub.GetPreload, request)
        return _preload(answer.preload) if answer.found else None

    async def remove(self, name: str) -> Evicted | None:
        """Forgets a preload and its blocks; None: unknown."""
        request = pb.RemovePreloadRequest(tenant=self._tenant, name=name)
        answer: pb.RemovePreloadResponse = await self._ask(self._stub.RemovePreload, request)
        return Evicted(answer.blocks, 0) if answer.found else None

    async def pin(self, name: str, pinned: bool = True) -> Preload | None:
        """Pins a preload again, computing what is gone, or lets its blocks go; None: unknown."""
        request = pb.PinPreloadRequest(tenant=self._tenant, name=name, pinned=pinned)
        answer: pb.PinPreloadResponse = await self._ask(self._stub.PinPreload, request, BUILD_TIMEOUT_S)
        return _preload(answer.preload) if answer.found else None

    async def evict(
        self, *, name: str = "", prefix: str = "", form: str = "raw", salt: str = "", whole_tenant: bool = False
    ) -> Evicted:
        """Throws out a preload's blocks, everything behind a beginning, or all of the tenant."""
        request = pb.EvictRequest(
            tenant=self._tenant, name=name, prefix=prefix, form=form, salt=salt, whole_tenant=whole_tenant
        )
        answer: pb.EvictResponse = await self._ask(self._stub.Evict, request)
        return Evicted(answer.blocks, answer.stores)

    async def rotate(self) -> Rotated:
        """A new namespace for the tenant: what was cached for it is never found again."""
        answer: pb.RotateNamespaceResponse = await self._ask(
            self._stub.RotateNamespace, pb.RotateNamespaceRequest(tenant=self._tenant)
        )
        return Rotated(answer.generation, answer.blocks, answer.stores, answer.preloads)

    async def explain(self, request_id: str) -> CacheExplanation:
        """Where a request left the nearest cached prefix, and why. Raises UnknownRequest."""
        request = pb.ExplainRequest(tenant=self._tenant, request_id=request_id)
        found: pb.ExplainResponse = await self._ask(self._stub.Explain, request)
        return CacheExplanation(
            found.reason,
            found.message,
            found.prompt_tokens,
            found.cached_tokens,
            found.shared_tokens,
            found.left_at,
            found.nearest,
            found.around_from,
            tuple(unpack_u32(found.own)),
            tuple(unpack_u32(found.other)),
            found.own_text,
            found.other_text,
        )

    async def _ask(self, method: Any, request: Any, timeout_s: float = ASK_TIMEOUT_S) -> Any:
        try:
            return await method(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise error_from(error, self._address) from error


def _preload(found: pb.Preload) -> Preload:
    return Preload(
        found.tenant,
        found.name,
        found.version,
        found.form,
        found.salt,
        found.state,
        found.why,
        found.tokens,
        found.blocks,
        found.bytes,
        found.pinned,
        found.worker,
        found.uses,
        found.age_us / 1e6,
        dict(found.source),
    )
