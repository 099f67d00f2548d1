"""Limits, tenants and prediction errors as people and Prometheus see them."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_scheduler.cell import PREDICTED, Cell
from octavo_scheduler.fleet import Worker
from octavo_scheduler.limits.tenants import held_blocks


@dataclass(frozen=True, slots=True)
class TenantRow:
    """What a tenant may use and uses now; limits of 0: none. The fields are those of TenantStatus."""

    tenant: str
    requests: int
    running_sequences: int
    held_blocks: int
    rate_tokens_per_s: float
    burst_tokens: float
    tokens_left: float
    concurrency: int
    kv_share: float
    rejected: int


def tenant_rows(cell: Cell) -> list[TenantRow]:
    """Every tenant with a limit of its own or a request."""
    rows: list[TenantRow] = []
    workers = list(cell.fleet.workers.values())
    for name in cell.tenants.names():
        limits, account = cell.tenants.limits_of(name), cell.tenants.accounts.get(name)
        running = sum(item.choice.request.tenant == name for worker in workers for item in worker.sequences.values())
        rows.append(
            TenantRow(
                tenant=name,
                requests=account.live if account is not None else 0,
                running_sequences=running,
                held_blocks=sum(held_blocks(worker, name) for worker in workers),
                rate_tokens_per_s=limits.rate_tokens_per_s,
                burst_tokens=limits.burst,
                tokens_left=cell.tenants.level(name, cell.now_us) if limits.rate_tokens_per_s else 0.0,
                concurrency=limits.concurrency,
                kv_share=limits.kv_share,
                rejected=account.rejected if account is not None else 0,
            )
        )
    return rows


def door_figures(cell: Cell) -> dict[str, float]:
    """Gauges of the door by their stable names."""
    waiting = cell.queue.load.total
    figures: dict[str, float] = {
        "queue_kv_tokens": waiting.kv_tokens,
        "queue_gpu_seconds": waiting.gpu_us / 1e6,
        "blocks_retired": sum(worker.pool.retired_blocks for worker in cell.fleet.workers.values()),
        "preemption_rate": cell.counters["preemptions"] / max(1.0, cell.counters["admissions"]),
        "overcommit_ratio": max(map(_overcommit, cell.fleet.workers.values()), default=0.0),
    }
    for kind in PREDICTED:
        errors = cell.errors[kind]
        figures[f"{kind}_prediction_error_p50"] = errors.quantile(0.5)
        figures[f"{kind}_prediction_error_p90"] = errors.quantile(0.9)
        figures[f"{kind}_predictions"] = errors.count
    return figures


def _overcommit(worker: Worker) -> float:
    pool = worker.pool
    return (pool.usable_blocks - pool.free_blocks + worker.ungranted) / max(1, pool.usable_blocks)
