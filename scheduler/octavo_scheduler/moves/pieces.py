"""In which pieces a prompt is prefilled whose blocks go to another worker meanwhile.

A block can leave once its step is over, so the last step's blocks are copied behind the prefill, out and in again. With
pieces of c of n tokens that is c times the copies of a token, and n / c steps have their fixed part, which each of the k
prompts that wait for this worker waits for too: the sum is least where c = sqrt(n x k x fixed / copies of a token).
"""

from __future__ import annotations

import math

from octavo_scheduler.batching import step_policy
from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.request import Sequence

LEAST_BLOCKS = 4


def piece_tokens(source: Worker, target: Worker, tokens: int, prompts: float, most: int) -> int:
    """Tokens per step for a prefill of `tokens`, `most` at most; whole blocks. `prompts` wait for its end, itself included."""
    size = source.block_tokens
    copied_us = (source.block_bytes / source.link.bytes_per_us + target.block_bytes / target.link.bytes_per_us) / size
    best = math.sqrt(tokens * prompts * source.costs.fixed_us / copied_us)
    return min(most, max(LEAST_BLOCKS, math.ceil(best / size)) * size)


def cut(cell: Cell, source: Worker, target: Worker, sequence: Sequence) -> None:
    """This prefill for `target` begins."""
    sources = sum(worker.role == source.role for worker in cell.fleet.accepting())
    prompts = sum(item.behind > 0 for item in source.running()) + len(cell.queue) / max(1, sources)
    _order(cell, source, piece_tokens(source, target, sequence.behind + 1, max(1.0, prompts), cell.policy.budget_alone))


def ended(cell: Cell, source: Worker) -> None:
    """Such a prefill is over there; without another one the budget is the policy's again."""
    if source.pace.alone and not any(item.handoff is not None and not item.stopping for item in source.running()):
        _order(cell, source, 0)


def _order(cell: Cell, source: Worker, tokens: int) -> None:
    if tokens >= cell.policy.budget_alone:
        tokens = 0
    if tokens != source.pace.alone:
        source.pace.alone = tokens
        source.order(step_policy(source, cell.policy))
        cell.touched[source] = None
