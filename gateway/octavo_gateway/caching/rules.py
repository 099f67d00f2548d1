"""Checks of a request's `cache` field: what may be kept of its KV, the same over gRPC, HTTP and the SDK."""

from __future__ import annotations

import re
from typing import Final

from octavo.errors import FieldName

from octavo_gateway import sampling_checks as check
from octavo_gateway.requests import RequestParams

OFF: Final = FieldName("cache.off")
MAX_SALT_CHARS: Final = 256
MAX_TTL_S: Final = 30 * 86_400.0
LARGEST_PRIORITY: Final = 16
MAX_CHUNKS: Final = 256
TIERS: Final = ("hbm", "dram", "nvme", "remote")
PRELOAD_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def one_salt(outer: str, inner: str) -> str:
    """The salt of `cache_salt` and `cache.salt`. InvalidRequest when both are given and differ."""
    if outer and inner and outer != inner:
        raise check.invalid("cache.salt", "differs from ", FieldName("cache_salt"), "; send one of them")
    return outer or inner


def check_cache(params: RequestParams) -> None:
    """InvalidRequest naming the field for a value out of range, or one that another one contradicts."""
    check.name("cache_salt", params.cache_salt, MAX_SALT_CHARS)
    check.number("cache.ttl", params.cache_ttl_s, 0, MAX_TTL_S, fix=f"seconds, at most {MAX_TTL_S:.0f}; 0 for no limit")
    check.integer("cache.priority", params.cache_priority, -LARGEST_PRIORITY, LARGEST_PRIORITY)
    params.cache_tiers = tuple(dict.fromkeys(params.cache_tiers))
    for tier in params.cache_tiers:
        if tier not in TIERS:
            raise check.invalid("cache.tiers", f"{tier[:40]!r} is unknown; use {', '.join(TIERS)}")
    if params.cache_tiers and "hbm" not in params.cache_tiers:
        raise check.invalid("cache.tiers", "hbm is where KV is computed; include it, or send ", OFF)
    if params.cache_pin and not params.cache_ttl_s:
        problem = ", the seconds to pin for; what stays for good is a preload"
        raise check.invalid("cache.pin", "needs ", FieldName("cache.ttl"), problem)
    if params.cache_preload:
        preload_name("cache.preload", params.cache_preload)
    params.cache_chunks = tuple(params.cache_chunks)
    if len(params.cache_chunks) > MAX_CHUNKS:
        raise check.invalid("cache.chunks", f"{len(params.cache_chunks)} names; send at most {MAX_CHUNKS}")
    for name in params.cache_chunks:
        preload_name("cache.chunks", name)
    if params.cache_chunks and params.cache_preload:
        problem = "; make that the first of the chunks"
        raise check.invalid("cache.chunks", "stands beside ", FieldName("cache.preload"), problem)
    if params.cache_off:
        for field in ("ttl_s", "pin", "priority", "tiers", "preload", "chunks"):
            if getattr(params, f"cache_{field}"):
                name = field.removesuffix("_s")
                raise check.invalid(f"cache.{name}", "means nothing when ", OFF, " is set; send one of them")


def preload_name(field: str, name: str) -> str:
    """A name that a preload may have. InvalidRequest."""
    if not PRELOAD_NAME.fullmatch(name):
        raise check.invalid(field, f"{name[:40]!r} is no name; use 1 to 128 letters, digits and ._:-")
    return name
