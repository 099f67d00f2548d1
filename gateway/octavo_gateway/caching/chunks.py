"""Chunks: a prompt that begins with several preloads, one behind the other, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from octavo_gateway import sampling_checks as check
from octavo_gateway.caching.preloads import Preloaded
from octavo_gateway.requests import PromptChunk

FIELD: Final = "cache.chunks"


def join_chunks(
    names: Sequence[str], found: Sequence[Preloaded], bos_id: int | None
) -> tuple[Preloaded, list[PromptChunk]]:
    """What the request continues, and where each chunk stands in it. A BOS comes once, at the front.

    InvalidRequest for a system message behind the first, or chunks of different salts.
    """
    ids: list[int] = []
    chunks: list[PromptChunk] = []
    for name, preload in zip(names, found, strict=True):
        if ids and preload.form != "raw":
            raise check.invalid(FIELD, f"{name!r} is a system message, which stands in front; preload it with form raw")
        if preload.salt != found[0].salt:
            raise check.invalid(FIELD, f"{name!r} has another salt than {names[0]!r}; preload both with the same one")
        skip = int(bool(ids) and preload.token_ids[:1] == (bos_id,))
        own = preload.token_ids[skip:]
        chunks.append(PromptChunk(name, len(ids), len(own), skip))
        ids += own
    first = found[0]
    return Preloaded(first.content, first.form, first.salt, tuple(ids)), chunks
