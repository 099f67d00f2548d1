"""Whom to preempt when running sequences need blocks that nobody can give, and what it costs to bring one back.

Shortage = need - free - pending release. A victim counts only the blocks that it alone holds. Order of victims: lowest
priority first, then the one that is predicted to be brought back most cheaply, then the latest admitted. The oldest of
the highest priority is protected, so one can always finish.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from octavo_scheduler.fleet import Worker
from octavo_scheduler.policy import Policy
from octavo_scheduler.request import Sequence


class BringBack(NamedTuple):
    """The cheapest way to continue a sequence after a preemption, and its predicted device time in microseconds."""

    us: float
    how: Literal["recompute"]


def cost_to_bring_back(worker: Worker, sequence: Sequence, policy: Policy) -> BringBack:
    """What preempting `sequence` on its worker would cost later; changes nothing.

    Recompute: the prefill of all that is computed now, past the leading blocks that others hold and that therefore stay.
    A queue wait is not counted: it is the same for every victim.
    """
    kept = 0
    for block in sequence.blocks:
        if worker.pool.is_exclusive(block):
            break
        kept += 1
    tokens = max(1, sequence.computed_len - kept * worker.block_tokens)
    return BringBack(worker.costs.predict_prefill_us(tokens, policy.budget_alone), "recompute")


def choose_victims(worker: Worker, unmet: list[Sequence], policy: Policy) -> list[Sequence]:
    """The sequences to stop so that `unmet` (each needs one block now) can go on; empty when releases are enough."""
    shortage = len(unmet) - worker.pool.free_blocks - worker.pending_release()
    if shortage <= 0:
        return []
    running = worker.running()
    protected = min(running, key=lambda item: (-item.choice.request.priority, item.rank), default=None)
    needy = set(unmet)
    victims: dict[Sequence, None] = {}
    for candidate in cheapest_first(worker, running, policy):
        if shortage <= 0:
            break
        if candidate in victims:
            continue
        # an n > 1 group that is not split yet has one prefill and one owner
        members = [member for member in (candidate.group or (candidate,)) if not member.stopping]
        if protected in members:
            continue
        gain = sum(worker.exclusive_blocks(member) + (member in needy) for member in members)
        if gain == 0:
            continue
        victims.update(dict.fromkeys(members))
        shortage -= gain
    return list(victims)


def cheapest_first(worker: Worker, running: list[Sequence], policy: Policy) -> list[Sequence]:
    """In the order in which they are given up."""
    return sorted(
        running,
        key=lambda item: (item.choice.request.priority, cost_to_bring_back(worker, item, policy).us, -item.rank),
    )
