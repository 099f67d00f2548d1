"""The memory of the process, and the gauge that shows what of it is not the pool."""

from __future__ import annotations

from pathlib import Path

import prometheus_client
from octavo_gpuworker.memory import free_share, resident_bytes
from octavo_gpuworker.metrics import WorkerMetrics


def test_resident_bytes_are_this_process_and_0_where_nobody_says() -> None:
    assert 2**20 < resident_bytes() < 2**40
    assert resident_bytes(Path("/nowhere/statm")) == 0


def test_the_gauge_is_read_when_it_is_scraped() -> None:
    registry = prometheus_client.CollectorRegistry()
    metrics = WorkerMetrics(registry, 10, dict, {})
    held = [500.0]
    metrics.watch_memory(lambda: held[0])
    held[0] = 700.0
    assert registry.get_sample_value("octavo_worker_beyond_pool_bytes") == 700.0


def test_the_free_share_is_the_smaller_of_system_and_group(tmp_path: Path) -> None:
    meminfo, group = tmp_path / "meminfo", tmp_path / "group"
    meminfo.write_text("MemTotal:       1000 kB\nMemFree:          10 kB\nMemAvailable:    400 kB\n")
    group.mkdir()
    assert free_share(meminfo, group) == 0.4
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("900\n")
    assert free_share(meminfo, group) == 0.4
    (group / "memory.max").write_text("1200\n")
    assert free_share(meminfo, group) == 0.25


def test_the_free_share_is_all_where_nobody_says(tmp_path: Path) -> None:
    assert free_share(tmp_path / "none", tmp_path / "none") == 1.0
    assert 0.0 < free_share() <= 1.0
