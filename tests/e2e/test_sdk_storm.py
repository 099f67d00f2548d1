"""Many SDK clients with random cancels, deadlines, pauses and disconnects: no stream is lost, nothing leaks, every answer's usage is right."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest
from cluster import Cluster
from sdk_storm import Storm, sdk_storm

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]


async def under_way(cluster: Cluster) -> float:
    """Requests that the gateway still knows."""
    async with httpx.AsyncClient() as http:
        text = (await http.get(f"{cluster.http_url}/metrics")).text
    (found,) = re.findall(r"^octavo_gateway_live_requests (\S+)$", text, re.M)
    return float(found)


async def judged(cluster: Cluster, storm: Storm) -> None:
    for end, count in sorted(storm.ends.items()):
        print(f"{count:6} {end}")
    print("slowest cancels, s:", " ".join(f"{name} {took_s:.1f}" for took_s, name in sorted(storm.cancels)[-5:]))
    assert not storm.wrong, "\n".join([*storm.wrong[:20], f"status: {await cluster.status()}"])
    await cluster.settle(60)  # fails on a leaked block
    assert await under_way(cluster) == 0


async def test_a_few_clients(cluster: Cluster) -> None:
    storm = await sdk_storm(cluster, clients=8, calls=14, most_s=60)
    await judged(cluster, storm)
    assert sum(storm.ends.values()) >= 8 * 14


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_fifty_clients_leave_nothing_behind(make_cluster: Callable[..., Cluster]) -> None:
    """Memory and open files of every process are in the last third what they were in the second."""
    # finished requests are kept for replay up to this: what grows beyond is a leak
    cluster = make_cluster(workers=2, settings={"engine.threads": 1, "scheduler.registry_bytes": 2 * 2**20})
    await cluster.up()
    storm = await sdk_storm(cluster, clients=50, calls=200, most_s=200)
    await judged(cluster, storm)
    assert len(storm.footprints) > 12, "too short to tell"
    third = len(storm.footprints) // 3
    for name in storm.footprints[0]:
        course = [moment[name] for moment in storm.footprints]
        print(
            f"{name}: MB {' '.join(f'{mb:.0f}' for mb, _ in course)}; files {' '.join(str(files) for _, files in course)}"
        )
        early, late = course[third : 2 * third], course[2 * third :]
        assert min(mb for mb, _ in late) < 1.05 * max(mb for mb, _ in early) + 4, f"{name} grows"
        assert min(files for _, files in late) <= max(files for _, files in early), f"{name} keeps files"
