"""Eviction by key, preload or tenant, and the rotation of a tenant's namespace."""

from __future__ import annotations

from octavo_scheduler.cell import Cell
from octavo_scheduler.orders import Forget
from octavo_scheduler.preloads import build
from octavo_scheduler.preloads.cache_events import CacheEvicted, CacheResult, NamespaceRotated
from octavo_scheduler.preloads.drop import drop_below, drop_here, strip, tell_stores


def evict(cell: Cell, event: CacheEvicted) -> None:
    """By key, by preload, or all of a tenant."""
    book = cell.caching.book
    if event.key:
        gone = drop_below(cell, event.key)
        cell.caching.result = CacheResult(gone, len(cell.fleet.stores), found=bool(gone))
    elif event.name:
        preload = book.named(event.tenant, event.name)
        gone = build.evict(cell, preload) if preload is not None else 0
        cell.caching.result = CacheResult(gone, len(cell.fleet.stores), found=preload is not None)
    else:
        gone = sum(build.evict(cell, preload) for preload in book.of_tenant(event.tenant))
        result = _drop_tenant(cell, event.tenant, event.tag)
        result.blocks += gone
        cell.caching.result = result


def rotate(cell: Cell, event: NamespaceRotated) -> None:
    """A new generation: requests with older keys run on without, gateways are told, what was there is thrown out."""
    cell.caching.generations[event.tenant] = event.generation
    cell.effects.limits_changed = True
    if event.restored:
        return
    build.withdraw_all(cell, event.tenant)
    result = _drop_tenant(cell, event.tenant, event.tag)
    result.preloads = build.rekey(cell, event.tenant, event.mac, event.generation)
    cell.caching.result = result


def _drop_tenant(cell: Cell, tenant: str, tag: bytes) -> CacheResult:
    """Every chain of the tenant, and those whose owner nobody knows any more (taken over from a worker's Hello)."""
    strip(cell, lambda request: request.tenant == tenant)
    result = CacheResult(found=True)
    for worker in cell.fleet.workers.values():
        for head in worker.index.heads():
            if cell.caching.owner(head) in (tenant, None):
                result.blocks += drop_here(cell, worker, head)
    cell.caching.drop_ended_pins()
    result.stores = tell_stores(cell, Forget([], tag))
    return result
