"""Where a request left the nearest cached prefix of its tenant, and why."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from octavo_scheduler.cell import Cell
from octavo_scheduler.preloads.rule import NO_RULE
from octavo_scheduler.request import Request

AROUND = 8
"""Tokens that are shown on each side."""


@dataclass(slots=True)
class Other:
    """Something of the same tenant that may have been cached."""

    name: str
    tokens: array[int]
    root: bytes
    layout: bytes
    generation: int
    ready_us: int  # its blocks were computed then; -1: not yet


@dataclass(slots=True)
class Explanation:
    """`left_at`: the first token that was not found. `own` and `other` begin at `around_from`."""

    reason: str  # whole, text, salt, layout, namespace, evicted, running, short, off, none
    message: str
    prompt_tokens: int
    cached_tokens: int
    shared_tokens: int = 0
    left_at: int = 0
    nearest: str = ""
    around_from: int = 0
    own: array[int] | None = None
    other: array[int] | None = None


def explain(cell: Cell, request: Request, block_tokens: int) -> Explanation:
    """Of a live or stored request; what it is held against is what the registry still knows, and preloads."""
    cached = max(0, request.cached_tokens)
    found = Explanation("none", "", len(request.prompt), cached, left_at=cached)
    best: Other | None = None
    for other in _others(cell, request):
        shared = common(request.prompt, other.tokens)
        better = shared > found.shared_tokens
        same = shared == found.shared_tokens and best is not None and best.root != request.namespace_root == other.root
        if shared and (better or same):
            best, found.shared_tokens, found.nearest = other, shared, other.name
    _judge(found, request, best, block_tokens)
    if best is not None:
        at = found.shared_tokens if found.reason in ("text", "short") else found.left_at
        found.around_from = max(0, at - AROUND)
        found.own = request.prompt[found.around_from : at + AROUND]
        found.other = best.tokens[found.around_from : at + AROUND]
    return found


def _judge(found: Explanation, request: Request, best: Other | None, block_tokens: int) -> None:
    """Sets reason, message and left_at."""
    cached, shared = found.cached_tokens, found.shared_tokens
    most = (len(request.prompt) - 1) // block_tokens * block_tokens
    possible = min(shared // block_tokens * block_tokens, most)
    if request.blended:
        found.reason, found.left_at = "off", 0
        found.message = f"its chunks may be blended, so it has no keys; {request.blended_tokens} tokens were taken from other contexts"
        return
    off = not request.namespace_root and request.cache is not NO_RULE
    if off or (not request.prompt_keys and not request.namespace_root):
        found.reason, found.left_at = "off", 0
        found.message = f"the request kept out of the cache (cache.off); {possible} tokens could have been found"
    elif best is None:
        found.message = "nothing of this tenant with the same beginning is known"
    elif best.root != request.namespace_root and possible and not cached:
        found.left_at = 0
        if best.layout != request.cache.layout:
            found.reason, why = "layout", "for another model or KV layout"
        elif best.generation != request.cache.generation:
            found.reason, why = "namespace", "before the namespace was rotated"
        else:
            found.reason, why = "salt", "under another cache salt"
        found.message = f"{found.nearest} has the same first {shared} tokens, {why}"
    elif cached >= possible:
        found.left_at = cached
        if possible == most and most:
            found.reason, found.message = "whole", "everything that can be found was"
        elif not possible:
            found.reason, found.left_at = "short", shared
            found.message = f"only {shared} tokens are shared with {found.nearest}, less than a block of {block_tokens}"
        else:
            found.reason, found.left_at = "text", shared
            found.message = f"the text differs from {found.nearest} at token {shared}"
    elif best.ready_us < 0 or best.ready_us > max(request.admitted_us, 0):
        found.reason = "running"
        found.message = f"{found.nearest} had not computed token {cached} yet when the request started"
    else:
        found.reason = "evicted"
        found.message = f"{found.nearest} had token {cached} cached, and it was evicted before the request started"


def _others(cell: Cell, request: Request) -> Iterator[Other]:
    """Latest first, so that of equals the latest is the nearest."""
    for known in reversed(cell.registry.of_tenant(request.tenant)):
        if known is request or known.submitted_us > request.submitted_us or not known.namespace_root:
            continue
        for choice in known.choices:
            ready_us = known.first_token_us
            yield Other(
                known.request_id,
                choice.tokens(),
                known.namespace_root,
                known.cache.layout,
                known.cache.generation,
                ready_us,
            )
    for preload in cell.caching.book.of_tenant(request.tenant):
        if preload.state == "ready":
            ready_us = preload.started_us + preload.build_us
            yield Other(
                f"preload/{preload.name}", preload.prompt, preload.namespace_root, preload.root_key[:8],
                preload.generation, ready_us,
            )  # fmt: skip


def common(a: array[int], b: array[int]) -> int:
    """How many leading tokens are equal; O(log n) slices."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
