"""WatchBlocks: the inventory of every tier, then each change, as messages; a watcher too far behind begins anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from octavo.v1 import kvstore_pb2 as pb

from octavo_kvstore.store import Store
from octavo_kvstore.watch import TierChange

CHANGES_PER_MESSAGE = 4096


async def watch_blocks(store: Store, store_id: str) -> AsyncIterator[pb.WatchBlocksResponse]:
    """Runs until the caller stops it. What was said up to a message with `whole` is exactly what was held at that moment."""
    loop = asyncio.get_running_loop()
    wake = asyncio.Event()

    def notice() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(wake.set)

    watcher = store.holdings.watch(notice)
    try:
        while True:
            wake.clear()
            if watcher.needs_inventory:
                changes = store.holdings.inventory_for(watcher)
                for start in range(0, max(1, len(changes)), CHANGES_PER_MESSAGE):
                    part = changes[start : start + CHANGES_PER_MESSAGE]
                    last = start + CHANGES_PER_MESSAGE >= len(changes)
                    yield _message(part, store_id, restart=start == 0, whole=last)
            elif changes := watcher.take(CHANGES_PER_MESSAGE):
                yield _message(changes, store_id, restart=False, whole=True)
            else:
                await wake.wait()
    finally:
        store.holdings.unwatch(watcher)


def _message(changes: Sequence[TierChange], store_id: str, *, restart: bool, whole: bool) -> pb.WatchBlocksResponse:
    return pb.WatchBlocksResponse(
        restart=restart,
        whole=whole,
        changes=[
            pb.BlockChange(
                key=change.key, parent=change.parent, tier=change.tier, removed=change.removed, host=store_id
            )
            for change in changes
        ],
    )
