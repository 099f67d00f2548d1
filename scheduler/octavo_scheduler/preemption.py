"""Whom to preempt when running sequences need blocks that nobody can give, and what it costs to bring one back.

Shortage = need - free - pending release. A victim counts only the blocks that it alone holds. Order of victims: lowest
priority first, then the one that is predicted to be brought back most cheaply, then the latest admitted. The oldest of
the highest priority is protected, so one can always finish.

Priority inversion is the same question asked by a request that waits: under a policy that goes by priority, running
sequences of lower priority give way to it, on the worker where that costs least.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from octavo_scheduler.admission import Plan, growth_of, is_protected, margin_blocks
from octavo_scheduler.fleet import Worker
from octavo_scheduler.history import OutputHistory
from octavo_scheduler.moves.swap import swap_us
from octavo_scheduler.policy import FAIR, Policy
from octavo_scheduler.request import Request, Sequence
from octavo_scheduler.tiers import Directory


class BringBack(NamedTuple):
    """The cheapest way to continue a sequence after a preemption, and its predicted device time in microseconds."""

    us: float
    how: Literal["recompute", "swap"]


def cost_to_bring_back(
    worker: Worker, sequence: Sequence, policy: Policy, directory: Directory | None = None
) -> BringBack:
    """What preempting `sequence` on its worker would cost later; changes nothing.

    Recompute: the prefill of all that is computed now, past the leading blocks that others hold and that therefore stay.
    Swap (with `directory`, that of a kvstore which answers): those blocks to the kvstore and back (moves/swap.py). A queue wait is not counted: it is the same for every victim.
    """
    kept = 0
    for block in sequence.blocks:
        if worker.pool.is_exclusive(block):
            break
        kept += 1
    tokens = max(1, sequence.computed_len - kept * worker.block_tokens)
    again_us = worker.costs.predict_prefill_us(tokens, policy.budget_alone)
    both_ways_us = swap_us(worker, sequence, kept, directory) if policy.swap and policy.prefix_cache else None
    if both_ways_us is not None and both_ways_us < again_us:
        return BringBack(both_ways_us, "swap")
    return BringBack(again_us, "recompute")


def _no_directory(worker: Worker, request: Request) -> Directory | None:
    return None


DirectoryOf = Callable[[Worker, Request], Directory | None]
"""The kvstore's directory for a victim of this request on a worker; None where it cannot be swapped, or may not be."""


class Prices:
    """What the victims of one decision cost to bring back, each computed once: by it they are chosen, stopped and booked."""

    __slots__ = ("_directory_of", "_known", "_policy")

    def __init__(self, policy: Policy, directory_of: DirectoryOf = _no_directory) -> None:
        self._policy = policy
        self._directory_of = directory_of
        self._known: dict[Sequence, BringBack] = {}

    def of(self, worker: Worker, sequence: Sequence) -> BringBack:
        """The cheapest way that is open to this sequence."""
        known = self._known.get(sequence)
        if known is None:
            directory = self._directory_of(worker, sequence.choice.request)
            known = self._known[sequence] = cost_to_bring_back(worker, sequence, self._policy, directory)
        return known


def choose_victims(worker: Worker, unmet: list[Sequence], prices: Prices) -> list[Sequence]:
    """The sequences to stop so that `unmet` (each needs one block now) can go on; empty when releases are enough."""
    shortage = len(unmet) + worker.pool.debt - worker.pool.free_blocks - worker.pending_release()
    if shortage <= 0:
        return []
    running = worker.running()
    protected = min(running, key=lambda item: (-item.choice.request.priority, item.rank), default=None)
    needy = set(unmet)
    victims: dict[Sequence, None] = {}
    for candidate in cheapest_first(worker, running, prices):
        if shortage <= 0:
            break
        if candidate in victims:
            continue
        members = [member for member in candidate.together if not member.stopping]
        if protected in members:
            continue
        gain = sum(worker.exclusive_blocks(member) + (member in needy) for member in members)
        if gain == 0 or any(is_protected(member.choice) for member in members):
            continue
        victims.update(dict.fromkeys(members))
        shortage -= gain
    return list(victims)


def cheapest_first(worker: Worker, running: list[Sequence], prices: Prices) -> list[Sequence]:
    """In the order in which they are given up."""
    return sorted(running, key=lambda item: (item.choice.request.priority, prices.of(worker, item).us, -item.rank))


def may_displace(request: Request, other: Request, policy: Policy) -> bool:
    """Whether `other`, which runs, gives way to `request`, which waits; what gave way too often does not (admission.py).

    Under fair policies priority orders a tenant's own requests: it is no claim on what the others hold.
    """
    if other.priority >= request.priority or any(is_protected(choice) for choice in other.choices):
        return False
    order = policy.order_of(request.slo_class)
    return order in ("priority", "slo") or (order in FAIR and other.tenant == request.tenant)


def cheapest_displacement(
    request: Request, plans: list[Plan], policy: Policy, history: OutputHistory, prices: Prices
) -> tuple[Worker | None, list[Sequence]]:
    """Where, and whom to stop, so that one of `plans` fits at the least predicted cost; (None, []) when nobody may."""
    best: tuple[float, Worker | None, list[Sequence]] = (0.0, None, [])
    for plan in plans:
        worker = plan.worker
        if worker.preempting:  # a round is in flight: what it frees may be enough
            continue
        victims = displaced(request, plan, policy, history, prices)
        cost_us = sum(prices.of(worker, victim).us for victim in victims)
        if victims and (best[1] is None or cost_us < best[0]):
            best = (cost_us, worker, victims)
    return best[1], best[2]


def displaced(request: Request, plan: Plan, policy: Policy, history: OutputHistory, prices: Prices) -> list[Sequence]:
    """The cheapest running sequences of lower priority without which `plan` fits; empty when all together are too few."""
    worker, size = plan.worker, plan.worker.block_tokens
    running = worker.running()
    growth = sum(growth_of(sequence, size, history) for sequence in running)
    blocks = plan.free_needed + plan.growth + growth + margin_blocks(worker, policy)
    blocks -= worker.pool.free_blocks + worker.pending_release()
    stopping = len(worker.sequences) - len(running)
    slots = len(plan.choices) - len(worker.free_slots) - stopping
    if blocks <= 0 and slots <= 0:
        return []
    lower = [item for item in running if may_displace(request, item.choice.request, policy)]
    victims: dict[Sequence, None] = {}
    for candidate in cheapest_first(worker, lower, prices):
        members = [member for member in candidate.together if not member.stopping]
        for member in members:
            if member not in victims:
                victims[member] = None
                blocks -= worker.exclusive_blocks(member) + growth_of(member, size, history)
                slots -= 1
        if blocks <= 0 and slots <= 0:
            return list(victims)
    return []
