"""Preemption by swap: a victim's full blocks go to the kvstore, and come back by a load when it is admitted again.

Against recompute by predicted cost, both in time that the worker or its link is busy for this victim: recompute
prefills everything again; a swap copies out what the kvstore lacks, and all of it back. The partial last block is
recomputed either way: it has no key. What comes back is bit for bit what was computed, so a swap never changes a
token; a recompute may, where two logits tie within rounding (engine.deterministic excludes that too).
"""

from __future__ import annotations

from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.moves.exports import answering, items_of, order_exports
from octavo_scheduler.request import Sequence
from octavo_scheduler.tiers import Directory


def swap_us(worker: Worker, sequence: Sequence, kept: int, directory: Directory | None) -> float | None:
    """Predicted time of both ways for the full blocks past the `kept` ones, which stay in the pool whatever happens.

    None when there is nothing to copy, or nowhere to copy it.
    """
    choice, size = sequence.choice, worker.block_tokens
    full = min(sequence.computed_len // size, len(sequence.blocks))
    if directory is None or not choice.request.cache.goes_below:
        return None
    if full <= kept or choice.key(full - 1, size) is None:
        return None
    keys = (choice.key(at, size) for at in range(kept, full))
    lacking = sum(key is not None and key not in directory for key in keys)
    back_us = worker.link.predict_us((full - kept) * worker.block_bytes)
    return back_us + (worker.link.predict_us(lacking * worker.block_bytes) if lacking else 0.0)


def swap_out(cell: Cell, worker: Worker, sequence: Sequence) -> int:
    """What of the victim's full blocks the kvstore lacks goes there, held until it is away; how many blocks.

    Called when the victim is stopped, for what it has computed by then, and when it is released, for what its last steps have
    filled: nobody writes to a full block, so that its copy need not wait for the step under way.
    """
    directory = answering(cell, worker)
    if directory is None:
        return 0  # the kvstore was lost meanwhile: what stays cached is all there is
    full = min(sequence.computed_len // worker.block_tokens, len(sequence.blocks))
    if full <= sequence.swapped_blocks:
        return 0
    items = items_of(worker, sequence.choice, sequence.blocks, sequence.swapped_blocks, full)
    sequence.swapped_blocks = full
    lacking = [item for item in items if item[1].key not in directory]
    order_exports(cell, worker, sequence.choice.request, lacking, "swap")
    cell.counters["swapped_blocks"] += len(lacking)
    return len(lacking)
