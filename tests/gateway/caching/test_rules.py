"""The `cache` field: one meaning over gRPC, HTTP and the SDK, and errors that name the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from octavo.client.wire import generate_request
from octavo.errors import InvalidRequest
from octavo_gateway.caching.rules import check_cache
from octavo_gateway.http.bodies import CompletionBody, decode_body
from octavo_gateway.http.params import completion_params
from octavo_gateway.inference_wire import generate_params
from octavo_gateway.requests import RequestParams

EVERYTHING = {"ttl": 60, "pin": True, "priority": -3, "tiers": ["hbm", "nvme"], "salt": "s", "preload": "docs"}


def over_http(cache: dict[str, Any], **body: Any) -> RequestParams:
    return completion_params(decode_body(json.dumps({"prompt": "x", "cache": cache, **body}).encode(), CompletionBody))[
        0
    ]


def over_grpc(cache: dict[str, Any], **options: Any) -> RequestParams:
    return generate_params(generate_request("x", {"cache": cache, **options}))  # type: ignore[typeddict-item]


@pytest.mark.parametrize("cache", [EVERYTHING, {"chunks": ["a", "b"]}, {"off": True}, {"salt": "only"}, {}])
def test_both_edges_and_the_sdk_say_the_same(cache: dict[str, Any]) -> None:
    grpc, http = over_grpc(cache), over_http(cache)
    names = [name for name in RequestParams.__slots__ if name.startswith("cache_")]  # type: ignore[attr-defined]
    assert [getattr(grpc, name) for name in names] == [getattr(http, name) for name in names]
    check_cache(grpc)


def test_every_field_arrives() -> None:
    params = over_http(EVERYTHING)
    found = (
        params.cache_ttl_s,
        params.cache_pin,
        params.cache_priority,
        params.cache_tiers,
        params.cache_salt,
        params.cache_preload,
    )
    assert found == (60.0, True, -3, ("hbm", "nvme"), "s", "docs")
    assert over_grpc({"off": True}).cache_off


@pytest.mark.parametrize(
    ("cache", "field"),
    [
        ({"ttl": -1}, "cache.ttl"),
        ({"ttl": 1e12}, "cache.ttl"),
        ({"priority": 17}, "cache.priority"),
        ({"tiers": ["tape"]}, "cache.tiers"),
        ({"chunks": ["a", "b/c"]}, "cache.chunks"),
        ({"chunks": ["a"] * 257}, "cache.chunks"),
        ({"chunks": ["a"], "preload": "b"}, "cache.chunks"),
        ({"chunks": ["a"], "off": True}, "cache.chunks"),
        ({"tiers": ["dram"]}, "cache.tiers"),
        ({"pin": True}, "cache.pin"),
        ({"preload": "a b"}, "cache.preload"),
        ({"preload": "../x"}, "cache.preload"),
        ({"off": True, "ttl": 5}, "cache.ttl"),
        ({"off": True, "preload": "docs"}, "cache.preload"),
        ({"salt": "x" * 257}, "cache_salt"),
    ],
)
@pytest.mark.parametrize("edge", [over_grpc, over_http])
def test_a_wrong_value_names_its_field(cache: dict[str, Any], field: str, edge: Any) -> None:
    with pytest.raises(InvalidRequest) as raised:
        check_cache(edge(cache))
    assert raised.value.field == field


@pytest.mark.parametrize("edge", [over_grpc, over_http])
def test_two_different_salts_are_refused(edge: Any) -> None:
    assert edge({"salt": "a"}, cache_salt="a").cache_salt == "a"
    with pytest.raises(InvalidRequest, match=r"cache\.salt: differs"):
        edge({"salt": "a"}, cache_salt="b")


def test_unknown_fields_are_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'ttl'"):
        generate_request("x", {"cache": {"tll": 4}})
    with pytest.raises(InvalidRequest, match="cache"):
        over_http({"tll": 4})
    with pytest.raises(InvalidRequest, match="cannot be sent"):
        generate_request("x", {"cache": {"ttl": "long"}})
