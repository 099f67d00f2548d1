"""What feeds the scheduler's instruments: the cell's figures when they are scraped, and the core's facts as they come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from octavo.rpc.instruments import Instruments, family, length_class
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from octavo_scheduler.admission import blocks_for
from octavo_scheduler.books.ledger_wire import ledger_figures, totals
from octavo_scheduler.cell import Cell
from octavo_scheduler.driver import Driver
from octavo_scheduler.fleet import Worker
from octavo_scheduler.instruments import CELL_COUNTERS, CELL_GAUGES, LEDGER, OBSERVED, PREFIX, SCRAPED
from octavo_scheduler.limits.shown import tenant_rows
from octavo_scheduler.orders import Fact
from octavo_scheduler.status import counters

_SECOND_US: Final = 1e6


class CellCollector(Collector):
    """Scrapes come on a thread, so they read a copy that the loop refreshes: name -> {label values: value}."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._values: dict[str, dict[tuple[str, ...], float]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Copies the cell's figures; call it on the event loop, about once a second."""
        self._values = figures(self._driver.core.cell)

    def collect(self) -> Iterator[Metric]:
        """One family per instrument of the table."""
        values = self._values
        for item in SCRAPED:
            shown = family(item)
            for labels, value in values.get(item.name.removeprefix(PREFIX), {}).items():
                shown.add_metric(labels, value)
            yield shown


def figures(cell: Cell) -> dict[str, dict[tuple[str, ...], float]]:
    """Every scraped figure of the cell by name and label values."""
    flat = counters(cell) | _pools(cell) | _queue(cell)
    values: dict[str, dict[tuple[str, ...], float]] = {
        name: {(): flat[name]} for name, _text in (*CELL_COUNTERS, *CELL_GAUGES)
    }
    values["busy_seconds"] = {(phase,): flat[f"{phase}_busy_us"] / _SECOND_US for phase in ("prefill", "decode")}
    books = totals(cell)
    for name, _text in LEDGER:
        figure = name.removeprefix("ledger_")
        values[name] = {(technique,): getattr(book, figure) for technique, book in books.items()}
    values |= ledger_figures(cell)
    values["evictions"] = {(reason,): count for reason, count in cell.evictions().items()}
    tenants = [row for row in tenant_rows(cell) if cell.tenants.is_limited(row.tenant)]
    values["tenant_requests"] = {(row.tenant,): row.requests for row in tenants}
    values["tenant_held_blocks"] = {(row.tenant,): row.held_blocks for row in tenants}
    values["tenant_tokens_left"] = {(row.tenant,): row.tokens_left for row in tenants if row.rate_tokens_per_s}
    values["tenant_rejected"] = {(row.tenant,): row.rejected for row in tenants}
    workers = list(cell.fleet.workers.values())
    values["worker_running"] = {(worker.worker_id,): len(worker.sequences) for worker in workers}
    values["worker_blocks_free"] = {(worker.worker_id,): worker.pool.free_blocks for worker in workers}
    values["worker_backlog_tokens"] = {(worker.worker_id,): worker.backlog for worker in workers}
    values["worker_step_seconds"] = {(worker.worker_id,): worker.costs.step_us / _SECOND_US for worker in workers}
    values["worker_step_prediction_error_ratio"] = {(worker.worker_id,): worker.costs.error_ratio for worker in workers}
    values |= _roles(cell, workers)
    return values


def _roles(cell: Cell, workers: list[Worker]) -> dict[str, dict[tuple[str, ...], float]]:
    """Per role of workers: how idle they are, what waited for them, what handoffs take of their links."""
    by_role: dict[str, list[Worker]] = {}
    for worker in workers:
        by_role.setdefault(worker.role, []).append(worker)
    rate = cell.moved.bytes_per_s(cell.now_us)
    links = {role: sum(item.link.bytes_per_us for item in items) * 1e6 for role, items in by_role.items()}
    return {
        "pool_idle_ratio": {
            (role,): 1 - sum(item.busy_share for item in items) / len(items) for role, items in by_role.items()
        },
        "pool_queue_seconds": {(role,): waited / _SECOND_US for role, waited in cell.pool_waits_us.items()},
        "handoff_link_ratio": {(role,): rate / link for role, link in links.items() if link},
        "handoff_bytes_per_second": {(): rate},
        "handoff_transfer_p50_seconds": {(): cell.moved.quantile_us(0.5) / _SECOND_US},
        "handoff_transfer_p99_seconds": {(): cell.moved.quantile_us(0.99) / _SECOND_US},
    }


def _pools(cell: Cell) -> dict[str, float]:
    workers = list(cell.fleet.workers.values())
    total = sum(worker.pool.usable_blocks for worker in workers)
    free = sum(worker.pool.free_blocks for worker in workers)
    running = {id(sequence.choice.request) for worker in workers for sequence in worker.sequences.values()}
    return {
        "requests_running": len(running),
        "workers": len(workers),
        "blocks": total,
        "blocks_free": free,
        "blocks_used": total - free,
        "blocks_cached": sum(worker.pool.cached_blocks for worker in workers),
        "blocks_pinned": sum(worker.pool.pinned_blocks for worker in workers),
        "blocks_shared": sum(worker.shared_blocks() for worker in workers),
        "unused_positions": sum(worker.unused_positions() for worker in workers),
    }


def _queue(cell: Cell) -> dict[str, float]:
    """The queue in its units: requests, prompt tokens, blocks, predicted work, age."""
    waiting = list(cell.queue)
    ages_us = sorted(max(0, cell.now_us - request.waiting_since_us) for request in waiting)
    worker = next(iter(cell.fleet.workers.values()), None)
    blocks, work_us = 0, 0.0
    if worker is not None:
        prompts = [len(request.prompt) for request in waiting]
        blocks = sum(blocks_for(tokens, worker.block_tokens) for tokens in prompts)
        budget = cell.policy.max_num_batched_tokens
        work_us = sum(worker.costs.predict_prefill_us(tokens, budget) for tokens in prompts)
    return {
        "requests_waiting": len(waiting),
        "queue_prompt_tokens": cell.queue.prompt_tokens,
        "queue_blocks": blocks,
        "queue_work_seconds": work_us / _SECOND_US,
        "queue_age_p50_seconds": ages_us[len(ages_us) // 2] / _SECOND_US if ages_us else 0.0,
        "queue_age_max_seconds": ages_us[-1] / _SECOND_US if ages_us else 0.0,
    }


class FactMetrics:
    """Counts the core's facts. An attribute that a fact lacks is a bug of the core: KeyError."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._of = Instruments(registry, OBSERVED)

    def record(self, fact: Fact) -> None:
        """One fact, of any name."""
        seconds = (fact.end_us - fact.start_us) / _SECOND_US
        said = fact.attributes
        match fact.name:
            case "queue":
                prompt = length_class(int(said["prompt_tokens"]))
                self._histogram("queue_seconds").labels(prompt, str(said["outcome"])).observe(seconds)
            case "preempted":
                self._histogram("preempted_seconds").labels(str(said["reason"])).observe(seconds)
            case "handoff":
                self._of.counter(PREFIX + "handoffs_ended").labels(str(said["cause"])).inc()
                if said["cause"] == "done":
                    self._histogram("handoff_seconds").observe(seconds)
            case "pause":
                self._histogram("pause_seconds").labels(str(said["decision"])).observe(seconds)
            case "attempt":
                self._of.counter(PREFIX + "attempts").labels(str(said["reason"])).inc()
            case "kv.load":
                tier = str(said["tier"])
                self._histogram("kv_load_seconds").labels(tier).observe(seconds)
                self._of.counter(PREFIX + "kv_load_bytes").labels(tier).inc(float(said["bytes"]))
                self._load(said)
            case "cancel":
                self._histogram("cancel_seconds").labels(str(said["reason"])).observe(seconds)
            case "rejected":
                self._ended().labels("rejected", str(said["reason"]), "").inc()
            case "request_end":
                self._request_end(said, fact.end_us - fact.start_us)

    def _load(self, said: dict[str, str | int | float]) -> None:
        self._of.counter(PREFIX + "kv_load_decisions").labels(str(said["decision"])).inc()
        for part in ("lookup", "queue", "transfer", "deserialize", "suffix_prefill"):
            if f"{part}_ms" in said:
                self._histogram("kv_load_part_seconds").labels(part).observe(float(said[f"{part}_ms"]) / 1000)
        took_ms = float(said.get("first_token_ms", 0))
        if took_ms and "predicted_first_token_ms" in said:
            error = abs(float(said["predicted_first_token_ms"]) - took_ms) / took_ms
            self._histogram("kv_load_prediction_error_ratio").observe(error)

    def _request_end(self, said: dict[str, str | int | float], took_us: int) -> None:
        self._ended().labels(str(said["outcome"]), str(said["reason"]), str(said["slo_class"])).inc()
        prompts = self._of.counter(PREFIX + "prompt_tokens")
        prompts.labels("all").inc(int(said["prompt_tokens"]))
        for name, value in said.items():
            if name.startswith("cached_") and name != "cached_tokens":
                tier = name.removeprefix("cached_")
                prompts.labels(tier).inc(int(value))
                self._histogram("hit_length_tokens").labels(tier).observe(int(value))
        if int(said["first_token_us"]) >= 0:
            cache = "hit" if said["cached_tokens"] else "miss"
            first_us = int(said["first_token_us"])
            self._histogram("first_token_seconds").labels(cache).observe(first_us / _SECOND_US)
            if said["predicted_first_token_us"] and first_us:
                error = abs(int(said["predicted_first_token_us"]) - first_us) / first_us
                self._histogram("first_token_prediction_error_ratio").observe(error)
        if said["outcome"] == "finished" and said["predicted_total_us"] and took_us > 0:
            error = abs(int(said["predicted_total_us"]) - took_us) / took_us
            self._histogram("total_prediction_error_ratio").observe(error)
        tokens = int(said["tokens"])
        if said["outcome"] == "finished" and tokens and said["predicted_tokens"]:
            actual = tokens / int(said["choices"])
            error = abs(int(said["predicted_tokens"]) - actual) / actual
            self._histogram("output_prediction_error_ratio").observe(error)

    def _histogram(self, name: str) -> Histogram:
        return self._of.histogram(PREFIX + name)

    def _ended(self) -> Counter:
        return self._of.counter(PREFIX + "requests_ended")
