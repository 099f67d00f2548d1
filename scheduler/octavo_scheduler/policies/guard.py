"""Under fair policies the prefills of one tenant take small steps while others are about who run less here.

Whoever comes waits for the step under way, which nobody can stop: with whole budgets that is as long as a prefill of its own. So
where all prefills of a worker are one tenant's, its steps have GUARDED of the budget; from the admission of somebody else's
prefill to its first token they have all of it again. The price is the steps' fixed part, and that tenant's.
"""

from __future__ import annotations

from itertools import islice

from octavo_scheduler.batching import step_policy
from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.policies.joining import ABOUT_US, MOST_OTHERS

FAIR = ("fair", "slo-fair")


def look(cell: Cell, worker: Worker) -> None:
    """Prefills of the worker began or ended: orders the other budgets when that is due."""
    if not worker.pace.guarded and (len(cell.tenants_about) < 2 or not worker.backlog):
        return
    guarded = _is_due(cell, worker)
    if guarded is not None and guarded is not worker.pace.guarded:
        worker.pace.guarded = guarded
        worker.order(step_policy(worker, cell.policy))
        cell.touched[worker] = None


def _is_due(cell: Cell, worker: Worker) -> bool | None:
    """None: nothing is prefilled, so that it makes no difference."""
    tenant = ""
    for sequence in worker.sequences.values():
        if sequence.behind <= 0 or sequence.stopping:
            continue
        request = sequence.choice.request
        if cell.order_of(request.slo_class) not in FAIR or (tenant and request.tenant != tenant):
            return False
        tenant = request.tenant
    return _others_about(cell, worker, tenant) if tenant else None


def _others_about(cell: Cell, worker: Worker, tenant: str) -> bool:
    running = worker.of_tenant
    for other, asked_us in islice(reversed(cell.tenants_about.items()), MOST_OTHERS):
        if cell.now_us - asked_us >= ABOUT_US:
            break
        if other != tenant and running[other] < running[tenant]:
            return True
    return False
