"""The memory of the process, and the gauge that shows what of it is not the pool."""

from __future__ import annotations

from pathlib import Path

import prometheus_client
import pytest
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


def meminfo_of(folder: Path, free: int) -> Path:
    meminfo = folder / "meminfo"
    meminfo.write_text(f"MemTotal:       1000 kB\nMemFree:          10 kB\nMemAvailable:    {free} kB\n")
    return meminfo


def test_the_free_share_is_the_smaller_of_system_and_group(tmp_path: Path) -> None:
    meminfo, own, groups = meminfo_of(tmp_path, 400), tmp_path / "cgroup", tmp_path / "groups"
    own.write_text("0::/\n")
    groups.mkdir()
    assert free_share(meminfo, own, groups) == 0.4
    (groups / "memory.max").write_text("max\n")
    (groups / "memory.current").write_text("900\n")
    assert free_share(meminfo, own, groups) == 0.4
    (groups / "memory.max").write_text("1200\n")
    assert free_share(meminfo, own, groups) == 0.25
    (groups / "memory.stat").write_text("anon 500\ninactive_file 120\nfile 300\n")  # read once and kept for nobody
    assert free_share(meminfo, own, groups) == 0.35


@pytest.mark.parametrize(
    ("line", "folder", "limit", "used"),
    [
        ("0::/system.slice/octavo.service", "", "memory.max", "memory.current"),
        ("4:cpu,memory:/system.slice/octavo.service", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
)
def test_the_group_is_the_process_own_or_one_around_it(
    tmp_path: Path, line: str, folder: str, limit: str, used: str
) -> None:
    """Outside of a container nobody's limit stands at the root."""
    meminfo, own, root = meminfo_of(tmp_path, 900), tmp_path / "cgroup", tmp_path / "groups" / folder
    own.write_text(f"9:name=systemd:/elsewhere\n{line}\n")
    inner = root / "system.slice" / "octavo.service"
    inner.mkdir(parents=True)
    for group, most in ((inner.parent, 1000), (inner, 500)):
        (group / limit).write_text(f"{most}\n")
        (group / used).write_text("300\n")
    assert free_share(meminfo, own, tmp_path / "groups") == 0.4
    (inner / limit).unlink()
    assert free_share(meminfo, own, tmp_path / "groups") == 0.7


def test_the_free_share_is_all_where_nobody_says(tmp_path: Path) -> None:
    assert free_share(tmp_path / "none", tmp_path / "none", tmp_path / "none") == 1.0
    assert 0.0 < free_share() <= 1.0
