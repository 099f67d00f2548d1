"""The cell at a glance, as GetStatus and Prometheus show it."""

from __future__ import annotations

from dataclasses import asdict

from octavo.v1 import scheduler_pb2 as pb

from octavo_scheduler.admission import growth_of
from octavo_scheduler.cell import Cell
from octavo_scheduler.driver import Driver
from octavo_scheduler.limits.shown import door_figures, tenant_rows


def counters(cell: Cell) -> dict[str, float]:
    """All counters and gauges by their stable names."""
    values = dict(cell.counters)
    values["reserved_unused_tokens"] = reserved_unused_tokens(cell)
    values["blocks_leaked"] = sum(worker.leaked_blocks() for worker in cell.fleet.workers.values())
    values["registry_bytes"] = cell.registry.stored_bytes
    values["registry_names"] = len(cell.registry)
    values.update(cell.ledger.counters())
    values.update(door_figures(cell))
    return values


def reserved_unused_tokens(cell: Cell) -> int:
    """Positions that are granted or reserved for growth and hold no token."""
    total = 0
    for worker in cell.fleet.workers.values():
        for sequence in worker.running():
            granted = len(sequence.blocks) * worker.block_tokens - sequence.length
            growth = growth_of(sequence, worker.block_tokens, cell.history) * worker.block_tokens
            total += max(0, granted) + growth
    return total


def status(driver: Driver) -> pb.GetStatusResponse:
    """The answer to GetStatus."""
    cell = driver.core.cell
    fleet = cell.fleet
    workers = list(fleet.workers.values())
    values = counters(cell)
    ready = bool(fleet.accepting()) and not cell.draining
    joining = [item for epoch, item in driver.workers.items() if epoch not in fleet.workers]
    return pb.GetStatusResponse(
        scheduler_boot_id=driver.boot_id,
        ready=ready,
        why_not_ready="" if ready else "draining" if cell.draining else "no worker is ready",
        workers=[
            pb.WorkerStatus(
                worker_id=worker.worker_id,
                state="draining" if worker.draining else "serving",
                running=len(worker.sequences),
                blocks_total=worker.pool.usable_blocks,
                blocks_free=worker.pool.free_blocks,
                steps=worker.steps,
                pid=worker.hello.pid,
                role=worker.role,
                labels=sorted(worker.labels),
                blocks_retired=worker.pool.retired_blocks,
                block_bytes=worker.block_bytes,
                block_tokens=worker.block_tokens,
                step_tokens=cell.policy.budget_alone,
                fixed_us=worker.costs.fixed_us,
                prefill_token_us=worker.costs.prefill_token_us,
                context_token_us=worker.costs.context_token_us,
                load_bytes_per_us=worker.link.bytes_per_us,
                load_fixed_us=worker.link.fixed_us,
            )
            for worker in workers
        ]
        + [pb.WorkerStatus(worker_id=item.worker_id, state="joining") for item in joining],
        gateways=[
            pb.GatewayStatus(gateway_id=gateway.gateway_id, requests=len(gateway.deliveries))
            for gateway in fleet.gateways.values()
        ],
        stores=[
            pb.StoreStatus(store_id=store.store_id, state="synced" if store.synced else "joining", keys=len(store))
            for store in fleet.stores.values()
        ],
        requests_waiting=len(cell.queue),
        requests_running=len(
            {id(sequence.choice.request) for worker in workers for sequence in worker.sequences.values()}
        ),
        blocks_total=sum(worker.pool.usable_blocks for worker in workers),
        blocks_free=sum(worker.pool.free_blocks for worker in workers),
        blocks_cached=sum(worker.pool.cached_blocks for worker in workers),
        blocks_leaked=int(values["blocks_leaked"]),
        counters=values,
        tenants=[pb.TenantStatus(**asdict(row)) for row in tenant_rows(cell)],
    )


def cell_load(cell: Cell) -> pb.CellLoad:
    """What gateways tell routers; cheap enough for once a second."""
    workers = list(cell.fleet.workers.values())
    return pb.CellLoad(
        requests_waiting=len(cell.queue),
        requests_running=len(
            {id(sequence.choice.request) for worker in workers for sequence in worker.sequences.values()}
        ),
        blocks_total=sum(worker.pool.usable_blocks for worker in workers),
        blocks_free=sum(worker.pool.free_blocks for worker in workers),
        block_tokens=workers[0].block_tokens if workers else 0,
    )
