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
from octavo_scheduler.policy import SECOND_US
from octavo_scheduler.request import Request

RESERVED_SHARE = 4
"""One slot in so many is left to other tenants; workers with fewer slots leave none."""
ABOUT_US = 60 * SECOND_US
"""A tenant is about for so long after it last asked for something."""
PRESSED_US = 150_000
"""More prefill than this ahead on a worker is much."""
IN_ORDER = 0.5
"""Under `slo-fair` such a stretch makes up for the prefill by which a start must come before its deadline."""
MOST_OTHERS = 8
"""Of those that asked last, so many are looked at."""


def joinable(cell: Cell, workers: list[Worker], request: Request) -> list[Worker]:
    """Those of `workers` whose batch is open to the request at the head; may set a timer for when one opens."""
    if len(cell.tenants_about) > 1 and (others := _others_about(cell, request)):
        workers = [worker for worker in workers if _has_slot(worker, request.tenant, others)]
    if cell.policy.batching == "continuous":
        return workers
    return [worker for worker in workers if _is_open(cell, worker, request)]


def has_its_share(cell: Cell, request: Request) -> bool:
    """Whether no worker has a slot left that its tenant may take, though some have one for others."""
    others = _others_about(cell, request) if len(cell.tenants_about) > 1 else []
    if not others:
        return False
    workers = [worker for worker in cell.fleet.open_to(request.pool, cell.now_us) if worker.free_slots]
    return bool(workers) and not any(_has_slot(worker, request.tenant, others) for worker in workers)


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
    for other, asked_us in reversed(cell.tenants_about.items()):
        if cell.now_us - asked_us >= ABOUT_US:
            break
        if other != tenant:
            return running
    return IN_ORDER


def _others_about(cell: Cell, request: Request) -> list[str]:
    """The other tenants that may have to be left slots; none under policies that know no tenants."""
    if len(cell.tenants_about) < 2 or cell.order_of(request.slo_class) not in ("fair", "slo-fair"):
        return []
    others: list[str] = []
    for tenant, asked_us in reversed(cell.tenants_about.items()):
        if cell.now_us - asked_us >= ABOUT_US or len(others) == MOST_OTHERS:
            break
        if tenant != request.tenant:
            others.append(tenant)
    return others


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
