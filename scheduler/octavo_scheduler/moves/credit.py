"""Credit: the room that a pool gives to what another worker prefills for it."""

from __future__ import annotations

from octavo_scheduler.admission import blocks_for, can_ever_hold, growth_of, margin_blocks
from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.moves.exports import answering
from octavo_scheduler.request import Handoff, Request


def blocks_of(request: Request, positions: int, block_tokens: int) -> int:
    """Blocks of all its choices at so many positions each: they share the full ones of the prompt."""
    alone = blocks_for(positions, block_tokens)
    shared = min(len(request.prompt) // block_tokens, alone)
    return shared + len(request.choices) * (alone - shared)


def room(cell: Cell, worker: Worker, request: Request) -> int:
    """Blocks that the worker can take for `request`: free, not reserved for growth, not promised to another."""
    slots = sum(len(other.choices) for other in worker.promised if other is not request)
    if len(worker.free_slots) - slots < len(request.choices):
        return 0
    promised = sum(blocks for other, blocks in worker.promised.items() if other is not request)
    free = worker.pool.free_blocks - margin_blocks(worker, cell.policy) - promised
    growth = sum(growth_of(sequence, worker.block_tokens, cell.history) for sequence in worker.running())
    return free - min(growth, worker.ungranted)


def find_target(cell: Cell, request: Request, serving: list[Worker]) -> Worker | None:
    """Who has the most room for all that the request holds by its first token; None: nobody gives credit."""
    best: tuple[int, Worker] | None = None
    size = (len(request.prompt), request.max_tokens, len(request.choices))
    for worker in serving:
        if answering(cell, worker) is None or not can_ever_hold(worker.shape(), *size):
            continue
        left = room(cell, worker, request) - blocks_of(request, request.choices[0].length + 1, worker.block_tokens)
        if left >= 0 and (best is None or left > best[0]):
            best = left, worker
    return best[1] if best is not None else None


def target_of(cell: Cell, handoff: Handoff) -> Worker | None:
    """Who is to decode, unless it has left or is about to."""
    target = cell.fleet.workers.get(handoff.target_epoch)
    return None if target is None or target.draining else target
