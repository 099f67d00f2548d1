"""Which workers a waiting request may join now: `scheduler.batching`.

Continuous: any, at its next step. Static: an idle one takes what waits, up to its sequences, and then nobody until the
whole batch has ended. Dynamic: as static, but an idle worker first waits for a full batch, `batching_max_wait_us` after
its first request began to wait at most.

Under fair policies a tenant leaves some slots of each worker to others that are about and hold fewer than those there, so that
a small tenant's newcomer need not wait until a sequence of a large one has ended. One that holds fewer itself may take
them; tenants that all hold as many leave each other nothing.
"""

from __future__ import annotations

from octavo_scheduler.cell import Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.policies.about import others_about
from octavo_scheduler.policy import FAIR
from octavo_scheduler.request import Request

RESERVED_SHARE = 4
"""One slot in so many is left to other tenants; workers with fewer slots leave none."""
PRESSED_US = 150_000
"""More prefill than this ahead on a worker is much."""
IN_ORDER = 0.5
"""Under `slo-fair` such a stretch makes up for the prefill by which a start must come before its deadline."""


def joinable(cell: Cell, workers: list[Worker], request: Request) -> list[Worker]:
    """Those of `workers` whose batch is open to the request at the head; may set a timer for when one opens."""
    if others := _others(cell, request):
        workers = [worker for worker in workers if _has_slot(worker, request.tenant, others)]
    if cell.policy.batching == "continuous":
        return workers
    return [worker for worker in workers if _is_open(cell, worker, request)]


def has_its_share(cell: Cell, request: Request, workers: list[Worker]) -> bool:
    """Whether none of `workers` has a slot left that its tenant may take, though some have one for others."""
    others = _others(cell, request)
    if not others:
        return False
    free = [worker for worker in workers if worker.free_slots]
    return bool(free) and not any(_has_slot(worker, request.tenant, others) for worker in free)


def beside(cell: Cell, worker: Worker, tenant: str) -> float:
    """How many of its own a prefill of the tenant makes way for: all that run there, or, where the tenant is alone and little
    waits, as much as leaves them in order of arrival.

    Among one tenant's own it lets short ones overtake long ones. That serves more in time when much is ahead; when little
    is, it gains milliseconds, and nobody could tell when a long one will have its first token.
    """
    running = worker.of_tenant.get(tenant, 0)
    if worker.backlog * worker.costs.prefill_token_us > PRESSED_US:
        return running
    if len(cell.tenants_about) == 1 and tenant in cell.tenants_about:
        return IN_ORDER
    return running if any(True for _ in others_about(cell, tenant)) else IN_ORDER


def _others(cell: Cell, request: Request) -> list[str]:
    """The other tenants that may have to be left slots; none under policies that know no tenants."""
    if len(cell.tenants_about) < 2 or cell.order_of(request.slo_class) not in FAIR:
        return []
    return list(others_about(cell, request.tenant))


def _has_slot(worker: Worker, tenant: str, others: list[str]) -> bool:
    reserved, held = worker.max_seqs // RESERVED_SHARE, worker.of_tenant
    if held.get(tenant, 0) < reserved:
        return bool(worker.free_slots)
    left = reserved - min([held.get(other, 0) for other in others])
    return len(worker.free_slots) > max(0, left)


def _is_open(cell: Cell, worker: Worker, request: Request) -> bool:
    if worker.sequences:
        return worker.batch_since_us == cell.now_us  # the requests of one moment fill a batch together
    if cell.policy.batching == "static" or len(cell.queue) >= worker.max_seqs:
        return True
    due_us = request.waiting_since_us + cell.policy.batching_max_wait_us
    if worker.batch_due_us < 0 or due_us < worker.batch_due_us:
        worker.batch_due_us = due_us
        cell.timers.at(due_us, "wake")
    return cell.now_us >= worker.batch_due_us
