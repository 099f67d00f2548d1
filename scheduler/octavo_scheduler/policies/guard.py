"""Under fair policies the prefills of a tenant that runs much leave room in time for those that run less.

Whoever comes waits for the step under way, which nobody can stop: with whole budgets that is as long as a prefill of its own. So
where all prefills of a worker are of the tenant that runs most there, and others are about, its steps have GUARDED of the budget.
While somebody else's prompt is computed the steps hold that prompt alone, in equal pieces: whole budgets, filled up with the
other's tokens, would make its last step as long as a full one. The price is the steps' fixed part, and the large tenant's.
"""

from __future__ import annotations

from octavo_scheduler.batching import step_policy
from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.policies.about import others_about
from octavo_scheduler.policies.pace import LEAST_TOKENS
from octavo_scheduler.policy import FAIR
from octavo_scheduler.request import Sequence

GUARDED = 0.5


def look(cell: Cell, worker: Worker) -> None:
    """Prefills of the worker began or ended: orders other budgets when that is due."""
    pace = worker.pace
    if not pace.limit and (len(cell.tenants_about) < 2 or not worker.backlog):
        return
    prefills = [item for item in worker.sequences.values() if item.behind > 0 and not item.stopping]
    if not prefills:
        return  # it makes no difference until one begins
    limit = _limit(cell, worker, prefills)
    if limit != pace.limit:
        pace.limit = limit
        worker.order(step_policy(worker, cell.policy))
        cell.touched[worker] = None


def _limit(cell: Cell, worker: Worker, prefills: list[Sequence]) -> int:
    """Tokens that a step may have; 0: as many as its budget."""
    running = worker.of_tenant
    if any(cell.order_of(item.choice.request.slo_class) not in FAIR for item in prefills):
        return 0
    tenants = {item.choice.request.tenant for item in prefills}
    first = min(prefills, key=_turn).choice.request.tenant
    budget = worker.pace.budget
    if len(tenants) == 1:
        others = any(running[other] < running[first] for other in others_about(cell, first))
        return max(LEAST_TOKENS, int(GUARDED * budget)) if others else 0
    if any(running[tenant] < running[first] for tenant in tenants):
        return 0
    own = [item for item in prefills if item.choice.request.tenant == first]
    tokens = sum(item.behind + 1 for item in own if item.leads)
    decoding = sum(item.behind <= 0 and not item.stopping for item in worker.sequences.values())
    # no tokens: a leader whose prompt was cached to its last token, with others that are counted until its first one
    steps = max(1, -(-tokens // max(1, (budget if decoding else cell.budget_alone) - decoding)))
    # whoever else prefills may decode before it is over, and must not push its last token into another step
    return len(worker.sequences) - len(own) + max(LEAST_TOKENS, -(-tokens // steps))


def _turn(sequence: Sequence) -> int:
    return sequence.turn
