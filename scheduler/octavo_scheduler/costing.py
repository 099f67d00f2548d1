"""What each request takes: device time by phase, KV bytes times seconds, prefill that it was spared.

Device time: the wall time of every report is split over the sequences that advanced in it, by the step-cost model
(costs.py), so that the sums over requests equal the time of all steps. KV of a pool: block tables times time, where
siblings' common blocks count once and a block that two requests share counts for both.

An end is told before the last step that was launched for it has ended. What comes then is booked, but in no told cost: `note_untold` counts
it, so that told costs and the counter together are the time of all steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import replace

from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.policies.account import Account
from octavo_scheduler.request import Cost, Request, Sequence


def charge(
    worker: Worker,
    wall_us: int,
    steps: int,
    advanced: Items[Sequence],
    counts: Items[int],
    contexts: Items[int],
    prefilled: Mapping[Sequence, int],
) -> bool:
    """Splits `wall_us` of the worker's `steps` over the sequences that `advanced` in them, and charges their decodes.

    The prefill of a first residency was charged when it was admitted, and no tenant pays for a recompute.

    Beside each stand the tokens it sampled and the positions it attended to; `prefilled` has those of them
    that had sampled nothing in this residency before, with the positions computed for them. False: it could not be split.
    """
    costs = worker.costs
    decode_us, context_us = costs.decode_seq_us, costs.context_token_us
    if counts.count(1) == len(counts):
        weights = [decode_us + context_us * context for context in contexts]
    else:
        weights = [decode_us * count + context_us * context for count, context in zip(counts, contexts, strict=True)]
    if prefilled:
        for at, sequence in enumerate(advanced):
            if sequence in prefilled:
                weights[at] = costs.prefill_token_us * prefilled[sequence] + context_us * contexts[at]
    total = sum(weights)
    if wall_us <= 0 or total <= 0:
        return wall_us <= 0
    scale = wall_us / total
    # tenants are charged what such steps are predicted to take: a slow moment of the machine is nobody's fault
    predicted = 1 + steps * costs.fixed_us / total
    if not prefilled:  # nearly every report
        payers: tuple[Account, ...] = ()  # mostly the same ones, one after another
        due = 0.0
        for sequence, weight in zip(advanced, weights, strict=True):
            sequence.cost.decode_us += weight * scale
            if sequence.accounts is not payers:
                for account in payers:
                    account.charge(due * predicted)
                payers, due = sequence.accounts, 0.0
            due += weight
        for account in payers:
            account.charge(due * predicted)
        return True
    for sequence, weight in zip(advanced, weights, strict=True):
        if sequence not in prefilled:
            sequence.cost.decode_us += weight * scale
            for account in sequence.accounts:
                account.charge(weight * predicted)
        elif sequence.choice.residencies > 1:
            sequence.cost.recompute_us += weight * scale
        else:
            sequence.cost.prefill_us += weight * scale
    return True


def note_untold(cell: Cell, request: Request) -> None:
    """Counts the device time of an ended request that no message told, once nothing more is charged to it."""
    if request.outcome is None or request.holds or (request.deliveries and request.told_device_us < 0):
        return
    taken_us = request.cost.device_us
    cell.counters["untold_device_us"] += taken_us - max(0.0, request.told_device_us)
    request.told_device_us = taken_us


def accrue(sequence: Sequence, block_bytes: int, now_us: int) -> None:
    """Books the KV that `sequence` held since the last call; call it before its table changes."""
    held = (len(sequence.blocks) - sequence.unpaid_blocks) * block_bytes
    sequence.choice.request.cost.pool_byte_s += held * (now_us - sequence.accrued_us) / 1e6
    sequence.accrued_us = now_us


def pass_on_shared(sequence: Sequence, block_bytes: int, now_us: int) -> None:
    """The payer of the siblings' common blocks leaves: the next one that still holds them pays."""
    if sequence.choice.request.beams is not None:
        left = [item for item in sequence.together if item is not sequence and item.epoch == sequence.epoch]
        for item in left:
            accrue(item, block_bytes, now_us)
        split_shared(left)
        return
    if sequence.unpaid_blocks:
        return
    for choice in sequence.choice.request.choices:
        other = choice.sequence
        if other is not None and other is not sequence and other.epoch == sequence.epoch and other.unpaid_blocks:
            accrue(other, block_bytes, now_us)
            other.unpaid_blocks = 0
            return


def split_shared(beams: Items[Sequence]) -> None:
    """Who pays for the blocks that beams have in common: the first that holds them. They share leading blocks alone."""
    paid: set[int] = set()
    for sequence in beams:
        blocks = sequence.blocks
        sequence.unpaid_blocks = next((at for at, block in enumerate(blocks) if block not in paid), len(blocks))
        paid.update(blocks[sequence.unpaid_blocks :])


def cost_now(request: Request, workers: Mapping[int, Worker], now_us: int) -> Cost:
    """What `request` has taken up to now, for who only looks: the books stay as the events left them."""
    held_byte_s = 0.0
    for choice in request.choices:
        sequence = choice.sequence
        if sequence is not None and (worker := workers.get(sequence.epoch)) is not None:
            held = (len(sequence.blocks) - sequence.unpaid_blocks) * worker.block_bytes
            held_byte_s += held * max(0, now_us - sequence.accrued_us) / 1e6
    return replace(request.cost, pool_byte_s=request.cost.pool_byte_s + held_byte_s)


def accrue_all(request: Request, workers: dict[int, Worker], now_us: int) -> None:
    """Brings the KV account of everything that `request` holds up to now."""
    for choice in request.choices:
        sequence = choice.sequence
        if sequence is not None and (worker := workers.get(sequence.epoch)) is not None:
            accrue(sequence, worker.block_bytes, now_us)
