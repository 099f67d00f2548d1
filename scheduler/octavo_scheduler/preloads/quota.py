"""How much may be pinned: a share of the pool in all, and bytes per tenant. Every refusal gives both numbers."""

from __future__ import annotations

from octavo_scheduler.cell import Cell
from octavo_scheduler.events import Submitted
from octavo_scheduler.fleet import Worker

EVERY_TENANT = "*"
MOST_PRELOADS = 1024
"""Of one tenant: the scheduler keeps the tokens of each in memory and in a file."""


def largest(cell: Cell) -> Worker | None:
    """The worker with the largest pool, which decides what can be pinned at all."""
    return max(cell.fleet.accepting(), key=lambda worker: worker.pool.usable_blocks, default=None)


def quota_bytes(cell: Cell, tenant: str) -> int:
    """What a tenant may pin."""
    worker = largest(cell)
    share = 0 if worker is None else int(worker.pool.usable_blocks * cell.policy.pin_share) * worker.block_bytes
    given = cell.policy.pin_quota_bytes
    own = given.get(tenant, given.get(EVERY_TENANT))
    return share if own is None else min(share, int(own))


def over_quota(cell: Cell, tenant: str, blocks: int, besides: str = "") -> str:
    """Why `blocks` more cannot be pinned for the tenant; empty: they can. `besides`: a preload that they replace."""
    worker = largest(cell)
    if worker is None:
        return "no worker is ready; retry"
    size = worker.block_bytes or 1
    pinned = cell.caching.pinned_blocks(tenant, besides)
    quota = quota_bytes(cell, tenant)
    if (pinned + blocks) * size > quota:
        return (
            f"{blocks * size} bytes beside {pinned * size} that are pinned exceed the pin quota of {quota} bytes; "
            "remove a preload, or raise cache.pin_share or cache.pin_quota_bytes"
        )
    tenants = {item.tenant for item in cell.caching.book} | {item.tenant for item in cell.caching.pins}
    others = sum(cell.caching.pinned_blocks(other) for other in tenants if other != tenant)
    room = int(worker.pool.usable_blocks * cell.policy.pin_share)
    if pinned + others + blocks > room:
        return (
            f"{blocks * size} bytes beside {(pinned + others) * size} that all tenants have pinned exceed the "
            f"{room * size} bytes of cache.pin_share {cell.policy.pin_share:g}; remove a preload or raise it"
        )
    return ""


def too_many(cell: Cell, tenant: str, name: str) -> str:
    """Why the tenant cannot have one more preload; empty: it can, or this is one of its own. Evicted ones hold no block, and count."""
    book = cell.caching.book
    names = {item for item in (*book.active, *book.pending) if item[0] == tenant}
    if (tenant, name) in names or len(names) < MOST_PRELOADS:
        return ""
    return f"name: {len(names)} preloads of this tenant are kept, and no more can be; remove one"


def pin_refusal(cell: Cell, event: Submitted) -> str:
    """Why a request that asks for a pin cannot have it; empty: it can, or asks for none."""
    worker = largest(cell) if event.cache.pin else None
    if worker is None:
        return ""
    blocks = (len(event.prompt) + event.max_tokens * len(event.choices)) // worker.block_tokens
    why = over_quota(cell, event.tenant, blocks)
    return f"cache.pin: {why}" if why else ""
