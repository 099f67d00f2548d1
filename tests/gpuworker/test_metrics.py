"""The gauge that shows what of a worker's memory is not the pool."""

from __future__ import annotations

import prometheus_client
from octavo_gpuworker.metrics import WorkerMetrics


def test_the_gauge_is_read_when_it_is_scraped() -> None:
    registry = prometheus_client.CollectorRegistry()
    metrics = WorkerMetrics(registry, 10, dict, {})
    held = [500.0]
    metrics.watch_memory(lambda: held[0])
    held[0] = 700.0
    assert registry.get_sample_value("octavo_worker_beyond_pool_bytes") == 700.0
