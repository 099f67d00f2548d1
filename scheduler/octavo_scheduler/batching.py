"""Standing orders that keep a worker stepping: its step policy, and blocks granted ahead of need."""

from __future__ import annotations

from octavo_scheduler.admission import blocks_for, growth_of, margin_blocks
from octavo_scheduler.cell import Cell
from octavo_scheduler.costing import accrue
from octavo_scheduler.fleet import Worker
from octavo_scheduler.orders import Grant, StepPolicy
from octavo_scheduler.policy import Policy
from octavo_scheduler.request import Sequence

STEPS_IN_FLIGHT = 2
"""Tokens that a worker may have computed beyond the last report: one reported late, one launched."""


def step_policy(worker: Worker, policy: Policy) -> StepPolicy:
    """The budgets of one worker."""
    return StepPolicy(*worker.pace.ordered(policy.budget_alone), worker.max_seqs)


def adjust_budget(cell: Cell, worker: Worker, decode_seqs: int, context_tokens: int) -> None:
    """Orders another step budget when so many decodes ask for one (policies/pace.py)."""
    if worker.pace.adjust(worker.costs, decode_seqs, context_tokens, cell.policy, cell.now_us):
        worker.order(step_policy(worker, cell.policy))
        cell.counters["budget_changes"] += 1


def ahead_tokens(worker: Worker, policy: Policy) -> int:
    """Tokens a decoding sequence makes in the grant horizon, the steps in flight included."""
    return STEPS_IN_FLIGHT + max(1, int(policy.grant_ahead_us / max(1.0, worker.costs.step_us)))


def wanted_positions(sequence: Sequence, ahead: int) -> int:
    """Positions that should be covered by now."""
    return min(sequence.length + ahead, sequence.max_positions)


def _rank(sequence: Sequence) -> int:
    return sequence.rank


def top_up(worker: Worker, policy: Policy) -> list[Sequence]:
    """Grants blocks to hungry sequences, oldest first; returns those that need a block at once and got none.

    With room, each gets its whole horizon; under pressure, one block to whoever would starve next.
    """
    pool, block_tokens = worker.pool, worker.block_tokens
    ahead = ahead_tokens(worker, policy)
    if len(worker.hungry) == 1:
        (alone,) = worker.hungry
        wanted = -(-min(alone.length + ahead, alone.max_positions) // block_tokens) - len(alone.blocks)
        if not alone.stopping and wanted + margin_blocks(worker, policy) <= pool.free_blocks:
            worker.hungry = {}
            if wanted > 0:
                grant(worker, alone, wanted)
            return []
    hungry = [item for item in worker.hungry if not item.stopping]
    if len(hungry) > 1:
        hungry.sort(key=_rank)
    worker.hungry = dict.fromkeys(hungry)
    # wanted_positions and blocks_for, in line
    wants = [
        -(-min(sequence.length + ahead, sequence.max_positions) // block_tokens) - len(sequence.blocks)
        for sequence in hungry
    ]
    roomy = sum(wants) + margin_blocks(worker, policy) <= pool.free_blocks
    unmet: list[Sequence] = []
    for sequence, wanted in zip(hungry, wants, strict=True):
        want = wanted
        if not roomy:
            near = wanted_positions(sequence, STEPS_IN_FLIGHT)
            want = min(want, blocks_for(near, block_tokens) - len(sequence.blocks))
            if want > pool.free_blocks:
                unmet.append(sequence)
                continue
        if want > 0:
            grant(worker, sequence, want)
        if wanted <= want:
            del worker.hungry[sequence]
    return unmet


def grant_spare(cell: Cell, worker: Worker) -> None:
    """Blocks were granted, so a message goes: every sequence there gets what it will want soon with it, and most steps need no order.

    Only where all sequences may grow to their last position without pressure, and only what admission keeps free for a sequence
    anyway, its predicted growth: it takes nothing from anybody.
    """
    policy, size = cell.policy, worker.block_tokens
    margin = margin_blocks(worker, policy)
    if not policy.spare_blocks or worker.ungranted + margin > worker.pool.free_blocks:
        return
    ahead = ahead_tokens(worker, policy) + policy.spare_blocks * size
    for sequence in worker.sequences.values():
        if sequence.stopping:
            continue
        want = blocks_for(wanted_positions(sequence, ahead), size) - len(sequence.blocks)
        if want > 0 and (want := min(want, growth_of(sequence, size, cell.history))) > 0:
            accrue(sequence, worker.block_bytes, cell.now_us)
            grant(worker, sequence, want)


def grant(worker: Worker, sequence: Sequence, count: int) -> None:
    """Appends `count` free blocks to the sequence's table and tells the worker."""
    blocks = worker.take(count, "growth")
    sequence.blocks.extend(blocks)
    worker.ungranted -= count
    worker.orders.append(Grant(sequence.seq, blocks))
