"""Mixed lengths, 10% cancelled at random moments: everything comes back, nothing leaks."""

from __future__ import annotations

import pytest
from cluster import Cluster
from storm import storm

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]


async def test_short_storm(cluster: Cluster) -> None:
    ends = await storm(cluster, 80, seed=1)
    assert sum(ends.values()) == 80
    status = await cluster.settle(30)
    assert status.blocks_leaked == 0


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_500_requests(cluster: Cluster) -> None:
    ends = await storm(cluster, 500, seed=2)
    assert sum(ends.values()) == 500
    assert ends["cancelled"] > 10
    status = await cluster.settle(60)
    assert status.blocks_leaked == 0
