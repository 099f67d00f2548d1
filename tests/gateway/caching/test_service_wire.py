"""CacheService at the gateway with a link that only notes: whose cache, what is checked, what is never passed on."""

from __future__ import annotations

from typing import Any

import pytest
from octavo.errors import InvalidRequest, OctavoError, Unauthenticated
from octavo.packing import unpack_u32
from octavo.v1 import cache_pb2 as pb
from octavo_gateway.admission import Admission
from octavo_gateway.caching import service_wire
from octavo_gateway.caching.service_wire import CacheServicer
from octavo_gateway.release_gate import Gate
from octavo_gateway.tenants import TenantDirectory


class Link:
    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []

    async def ask(self, method: str, request: Any, timeout_s: float = 5.0) -> Any:
        self.asked.append((method, request))
        return pb.EvictResponse()


class Call:
    def __init__(self, key: str = "mine") -> None:
        self.key = key

    def time_remaining(self) -> float | None:
        return None


async def _raise(_context: Any, error: OctavoError) -> Any:
    raise error


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def servicer(admission: Admission, link: Link) -> CacheServicer:
    tenants = TenantDirectory({"mine": "me", "boss": "root"}, ["root"])
    return CacheServicer(link, admission, tenants, Gate(open=True), lambda call: call.key, _raise)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("Evict", pb.EvictRequest(), "name"),
        ("Evict", pb.EvictRequest(name="a", whole_tenant=True), "name"),
        ("Evict", pb.EvictRequest(name="é" * 1000), "name"),
        ("Evict", pb.EvictRequest(prefix="text", salt="a b"), "salt"),
        ("Evict", pb.EvictRequest(prefix="text", form="other"), "form"),
        ("Evict", pb.EvictRequest(name="a", tenant="root"), "tenant"),
        ("PutPreload", pb.PutPreloadRequest(name="../x", texts=["a"]), "name"),
        ("PutPreload", pb.PutPreloadRequest(name="", texts=["a"]), "name"),
        ("PutPreload", pb.PutPreloadRequest(name="a", texts=[]), "texts"),
        ("PutPreload", pb.PutPreloadRequest(name="a", texts=["a"] * 5000), "texts"),
        ("PutPreload", pb.PutPreloadRequest(name="a", texts=["a"], salt="x" * 257), "salt"),
        ("RemovePreload", pb.RemovePreloadRequest(name="a\0b"), "name"),
        ("GetPreload", pb.GetPreloadRequest(name="a", tenant="root"), "tenant"),
        ("RotateNamespace", pb.RotateNamespaceRequest(tenant="root"), "tenant"),
        ("Explain", pb.ExplainRequest(), "request_id"),
        ("Explain", pb.ExplainRequest(request_id="root/secret"), "request_id"),
    ],
)
async def test_what_is_wrong_is_named_and_not_passed_on(
    servicer: CacheServicer, link: Link, method: str, request_: Any, field: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        await getattr(servicer, method)(request_, Call())
    assert raised.value.field == field and not link.asked


async def test_without_a_key_nothing_is_done(servicer: CacheServicer, link: Link) -> None:
    with pytest.raises(Unauthenticated):
        await servicer.Evict(pb.EvictRequest(whole_tenant=True), Call(""))
    assert not link.asked


async def test_an_admin_names_tenants_of_a_sane_length(servicer: CacheServicer, link: Link) -> None:
    await servicer.RotateNamespace(pb.RotateNamespaceRequest(tenant="me"), Call("boss"))
    assert link.asked.pop()[1].tenant == "me"
    with pytest.raises(InvalidRequest, match="tenant: 'nobody' is unknown; there are: me, root"):
        await servicer.RotateNamespace(pb.RotateNamespaceRequest(tenant="nobody"), Call("boss"))
    assert not link.asked
    with pytest.raises(InvalidRequest, match="at most 256"):
        await servicer.RotateNamespace(pb.RotateNamespaceRequest(tenant="x" * 100_000), Call("boss"))


async def test_a_client_s_own_tokens_and_wishes_of_gateways_are_never_passed_on(
    servicer: CacheServicer, link: Link, admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_wire, "THREAD_TEXT_CHARS", 3)
    forged = b"\xff\xff\xff\xff" * 8
    await servicer.Evict(pb.EvictRequest(name="docs", tokens=forged), Call())
    await servicer.Evict(pb.EvictRequest(prefix="One two.", tokens=forged), Call())
    await servicer.PutPreload(pb.PutPreloadRequest(name="docs", texts=["One two."], form="raw", tokens=forged), Call())
    await servicer.GetPreload(pb.GetPreloadRequest(name="docs", with_tokens=True, using=True), Call())
    named, prefix, put, get = (request for _method, request in link.asked)
    ids = admission.tokenizer.with_bos(admission.tokenizer.encode("One two."))
    assert named.tokens == b"" and unpack_u32(prefix.tokens) == unpack_u32(put.tokens) == ids
    assert not get.with_tokens and not get.using and {item.tenant for item in (named, prefix, put, get)} == {"me"}
