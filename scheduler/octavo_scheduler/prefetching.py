"""A request that waits: what it will load moves from a store's disk into its memory meanwhile.

A hint and no order: nothing waits for it, and a load that comes earlier finds the blocks where they are.
"""

from __future__ import annotations

from octavo_scheduler.admission import load_path, usable_keys
from octavo_scheduler.cell import Cell
from octavo_scheduler.reach import Reach
from octavo_scheduler.request import Request

MAX_HINT_KEYS = 1024


def hint(cell: Cell, request: Request) -> None:
    """Tells each store, once, the run of the prompt's blocks that a worker of its host would load; nothing for what runs already."""
    waiting = request.waiting_choices()
    if not cell.fleet.stores or not waiting or not request.live:
        return
    told: set[str] = set()
    for worker in cell.fleet.accepting():
        reach = cell.fleet.reach_of(worker, cell.now_us)
        if reach is None or reach.own.store_id in told:
            continue
        keys = usable_keys(waiting[0], worker.block_tokens, cell.policy)
        matched = worker.index.match_len(keys, len(keys))
        own = Reach(reach.own)  # peers' blocks are not on its disk
        path = load_path(worker, keys, matched, cell.policy, own, waiting[0].length, now_us=cell.now_us)
        run = min(path.run, MAX_HINT_KEYS)
        if run:
            told.add(reach.own.store_id)
            cell.effects.prefetch.append((reach.own.store_id, keys[matched : matched + run]))
            cell.counters["prefetch_hints"] += 1
