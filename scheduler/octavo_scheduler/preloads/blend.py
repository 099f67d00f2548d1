"""Blending: chunks of a prompt that are reused where they were not computed (CacheBlend: Yao et al., EuroSys 2025).

A request that may be blended has no keys: nothing of it is found by others or finds theirs, and its blocks leave with it. So
a blended block is never taken for an exact one. What the pool lacks of its chunks is computed; nothing is loaded for it.
"""

from __future__ import annotations

from octavo_scheduler.books.book import who_is
from octavo_scheduler.cell import Cell
from octavo_scheduler.events import Submitted
from octavo_scheduler.fleet import Worker
from octavo_scheduler.preloads.blend_parts import Blend
from octavo_scheduler.request import Choice


def wanted(event: Submitted) -> bool:
    """Whether the request may be blended, where any is. One chunk alone is a prefix, and found as one."""
    return len(event.cache.chunks) > 1


def admitted(cell: Cell, worker: Worker, choice: Choice, blend: Blend) -> None:
    """Its sources are held: books what is spared by the cost model."""
    request, sources = choice.request, blend.sources
    for part in blend.parts:
        worker.index.hit(part.block_ids, cell.now_us)
    request.blended_tokens = max(request.blended_tokens, blend.moved)
    cell.counters["blended_tokens"] += blend.moved
    token_ms = worker.costs.prefill_token_us / 1000
    cell.ledger.book(
        "blending",
        who_is(request),
        saved_ms=blend.reused * token_ms,
        cost_ms=blend.share * blend.moved * token_ms,
        cost_bytes=len(sources) * worker.block_bytes,
        hit_tokens=blend.reused,
        asked_tokens=choice.length,
    )
