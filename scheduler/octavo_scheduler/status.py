"""The cell at a glance, as GetStatus and Prometheus show it."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.v1 import scheduler_pb2 as pb
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo_scheduler.admission import growth_of
from octavo_scheduler.cell import Cell
from octavo_scheduler.driver import Driver

GAUGES = (
    "reserved_unused_tokens",
    "cancel_latency_us_last",
    "blocks_leaked",
    "registry_bytes",
    "registry_names",
    "requests_waiting",
    "workers",
    "blocks",
    "blocks_free",
    "blocks_cached",
)


def counters(cell: Cell) -> dict[str, float]:
    """All counters and gauges by their stable names."""
    values = dict(cell.counters)
    values["reserved_unused_tokens"] = reserved_unused_tokens(cell)
    values["blocks_leaked"] = sum(worker.leaked_blocks() for worker in cell.fleet.workers.values())
    values["registry_bytes"] = cell.registry.stored_bytes
    values["registry_names"] = len(cell.registry)
    values.update(cell.ledger.counters())
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
    )


class CellCollector(Collector):
    """Prometheus metrics octavo_scheduler_<name>. Scrapes come on a thread, so they read a copy that the loop refreshes."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._values: dict[str, float] = {}
        self.refresh()

    def refresh(self) -> None:
        """Copies the cell's figures; call it on the event loop, about once a second."""
        cell = self._driver.core.cell
        workers = list(cell.fleet.workers.values())
        self._values = counters(cell) | {
            "requests_waiting": len(cell.queue),
            "workers": len(workers),
            "blocks": sum(worker.pool.usable_blocks for worker in workers),
            "blocks_free": sum(worker.pool.free_blocks for worker in workers),
            "blocks_cached": sum(worker.pool.cached_blocks for worker in workers),
        }

    def collect(self) -> Iterator[Metric]:
        """One metric per figure of the last refresh."""
        for name, value in self._values.items():
            family = GaugeMetricFamily if name in GAUGES else CounterMetricFamily
            yield family(f"octavo_scheduler_{name}", name.replace("_", " "), value=value)
