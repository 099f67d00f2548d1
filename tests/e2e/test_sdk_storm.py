"""Many SDK clients with random cancels, deadlines, pauses and disconnects: no stream is lost, nothing leaks, every answer's usage is right."""

from __future__ import annotations

import asyncio
import re

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
    assert not storm.wrong, "\n".join(storm.wrong[:20])
    await cluster.settle(60)  # fails on a leaked block
    assert await under_way(cluster) == 0


async def test_a_few_clients(cluster: Cluster) -> None:
    storm = await sdk_storm(cluster, clients=8, calls=14, most_s=60)
    await judged(cluster, storm)
    assert sum(storm.ends.values()) >= 8 * 14


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_fifty_clients_leave_nothing_behind(cluster: Cluster) -> None:
    storm = await sdk_storm(cluster, clients=50, calls=200, most_s=210)
    await judged(cluster, storm)
    await asyncio.sleep(2)
    prints = storm.footprints
    third = len(prints) // 3
    for name in prints[0]:
        early = [prints[k][name] for k in range(third, 2 * third)]
        late = [prints[k][name] for k in range(2 * third, len(prints))]
        print(f"{name}: MB {early[0][0]:.0f} .. {late[-1][0]:.0f}, files {early[0][1]} .. {late[-1][1]}")
        assert min(mb for mb, _ in late) < 1.1 * max(mb for mb, _ in early) + 16, f"{name} grows"
        assert min(files for _, files in late) <= max(files for _, files in early), f"{name} keeps files"
