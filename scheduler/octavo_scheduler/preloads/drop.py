"""Throwing cached blocks out of the pools' indexes and the stores. Sequences that run on them keep them to their end."""

from __future__ import annotations

from collections.abc import Callable

from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.orders import Forget, Label
from octavo_scheduler.request import Request
from octavo_scheduler.tiers import Transfer


def drop_below(cell: Cell, key: bytes) -> int:
    """The block of `key` and all that was computed behind it, everywhere; how many left the pools."""
    strip(cell, lambda request: key in request.prompt_keys or any(key in item.output_keys for item in request.choices))
    gone = sum(drop_here(cell, worker, key) for worker in cell.fleet.workers.values())
    tell_stores(cell, Forget([key]))
    return gone


def drop_here(cell: Cell, worker: Worker, key: bytes) -> int:
    """The same in one worker's index alone."""
    dropped = worker.index.drop(key)
    if not dropped:
        return 0
    cell.touched[worker] = None
    under_way = {
        moved for transfer in worker.transfers.values() if transfer.kind == "offload" for moved in transfer.keys
    }
    for block, gone in dropped:
        worker.offload_candidates.pop(block, None)
        cell.caching.lifetimes.forget(gone)
        if gone in under_way:
            cell.caching.doomed.add(gone)
    cell.counters["thrown_out_blocks"] += len(dropped)
    worker.orders.append(Label([block for block, _key in dropped], []))  # the next Hello must not bring them back
    return len(dropped)


def strip(cell: Cell, concerned: Callable[[Request], bool]) -> None:
    """Live requests whose blocks are thrown out go on without keys: they leave nothing behind, and find nothing."""
    for request in cell.registry.live():
        if (request.prompt_keys or request.namespace_root) and concerned(request):
            request.prompt_keys, request.namespace_root = [], b""
            for choice in request.choices:
                choice.output_keys = []
                sequence = choice.sequence
                worker = cell.fleet.workers.get(sequence.epoch) if sequence is not None else None
                if sequence is not None and worker is not None:
                    for key in sequence.pending_keys:
                        worker.computing.pop(key, None)
                    sequence.pending_keys = []
    for worker in cell.fleet.workers.values():
        for transfer in worker.transfers.values():
            transfer.preload = ""  # of chunks on their way, whoever's: what arrives now is nobody's
    cell.admission_due = True


def tell_stores(cell: Cell, order: Forget) -> int:
    """Every connected store, and for a while each one that comes; how many are connected."""
    cell.caching.forgets.append(order)
    for store_id, directory in cell.fleet.stores.items():
        cell.effects.stores.append((store_id, order))
        directory.missed(order.keys)
    return len(cell.fleet.stores)


def tidy(cell: Cell) -> None:
    """Call it now and then: times to live of blocks that are nowhere any more are forgotten, once they may be many."""
    lifetimes, fleet = cell.caching.lifetimes, cell.fleet
    stores = fleet.stores.values()
    if not lifetimes.many or not all(store.synced for store in stores):
        return
    moving = {key for worker in fleet.workers.values() for item in worker.transfers.values() for key in item.keys}
    indexes = [worker.index.block_of for worker in fleet.workers.values()]
    lifetimes.keep_only(
        lambda key: key in moving or any(key in held for held in indexes) or any(key in store for store in stores)
    )


def remind(cell: Cell, store_id: str) -> None:
    """A store came: what was thrown out while it was away must not come back with it."""
    cell.effects.stores += [(store_id, order) for order in cell.caching.forgets]


def arrived(cell: Cell, transfer: Transfer) -> None:
    """An offload ended, or its worker was lost: what was thrown out meanwhile is thrown out of the store too."""
    doomed = [key for key in transfer.keys if key in cell.caching.doomed]
    if doomed:
        cell.caching.doomed.difference_update(doomed)
        tell_stores(cell, Forget(doomed))


def expire(cell: Cell) -> None:
    """Drops what has outlived its time; the stores count for themselves."""
    for key in cell.caching.lifetimes.due(cell.now_us):
        for worker in cell.fleet.workers.values():
            cell.counters["expired_blocks"] += drop_here(cell, worker, key)
    if due_us := cell.caching.lifetimes.next_us():
        cell.timers.at(due_us, "ttl")
