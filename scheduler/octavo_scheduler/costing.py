"""What each request takes: device time by phase, KV bytes times seconds, prefill that it was spared.

Device time: the wall time of every report is split over the sequences that advanced in it, by the step-cost model
(costs.py), so that the sums over requests equal the time of all steps. KV of a pool: block tables times time, where
siblings' common blocks count once and a block that two requests share counts for both.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo_scheduler.fleet import Worker
from octavo_scheduler.request import Request, Sequence


@dataclass(slots=True)
class Work:
    """How far one report took one sequence."""

    sequence: Sequence
    tokens: int  # positions whose KV was computed
    sampled: int  # tokens sampled
    context: int  # positions attended to at the end
    prefill: bool  # no token of this residency was sampled before


def charge(worker: Worker, wall_us: int, work: list[Work]) -> None:
    """Splits `wall_us` of the worker's steps over what they did."""
    if wall_us <= 0 or not work:
        return
    costs = worker.costs
    weights = [
        (costs.prefill_token_us * item.tokens if item.prefill else costs.decode_seq_us * item.sampled)
        + costs.context_token_us * item.context
        + 1e-6
        for item in work
    ]
    scale = wall_us / sum(weights)
    for item, weight in zip(work, weights, strict=True):
        choice = item.sequence.choice
        cost, share_us = choice.request.cost, weight * scale
        if not item.prefill:
            cost.decode_us += share_us
        elif choice.residencies > 1:
            cost.recompute_us += share_us
        else:
            cost.prefill_us += share_us


def accrue(sequence: Sequence, block_bytes: int, now_us: int) -> None:
    """Books the KV that `sequence` held since the last call; call it before its table changes."""
    held = (len(sequence.blocks) - sequence.unpaid_blocks) * block_bytes
    sequence.choice.request.cost.pool_byte_s += held * (now_us - sequence.accrued_us) / 1e6
    sequence.accrued_us = now_us


def pass_on_shared(sequence: Sequence, block_bytes: int, now_us: int) -> None:
    """The payer of the siblings' common blocks leaves: the next one that still holds them pays."""
    if sequence.unpaid_blocks:
        return
    for choice in sequence.choice.request.choices:
        other = choice.sequence
        if other is not None and other is not sequence and other.epoch == sequence.epoch and other.unpaid_blocks:
            accrue(other, block_bytes, now_us)
            other.unpaid_blocks = 0
            return


def accrue_all(request: Request, workers: dict[int, Worker], now_us: int) -> None:
    """Brings the KV account of everything that `request` holds up to now."""
    for choice in request.choices:
        sequence = choice.sequence
        if sequence is not None and (worker := workers.get(sequence.epoch)) is not None:
            accrue(sequence, worker.block_bytes, now_us)
