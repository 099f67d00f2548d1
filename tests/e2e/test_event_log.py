"""The log of a live cluster replays to the same orders, byte for byte: the core depends on nothing but its inputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Cluster
from octavo_scheduler.event_log import replay
from storm import storm

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("requests", [40, pytest.param(500, marks=pytest.mark.soak)])
async def test_a_live_run_replays_to_the_same_orders(
    requests: int, tmp_path: Path, make_cluster: Callable[..., Cluster]
) -> None:
    log = tmp_path / "events.jsonl"
    # a small pool, so that admission waits, sequences are preempted and blocks are evicted and offloaded
    cluster = make_cluster(settings={"engine.kv_num_blocks": 120, "scheduler.event_log": str(log)})
    await cluster.up()
    ends = await storm(cluster, requests, seed=5)
    status = await cluster.settle(60)
    cluster.down()  # the log is whole once the scheduler has ended
    assert sum(ends.values()) == requests
    lines = log.read_text(encoding="utf-8").splitlines()
    kinds = {json.loads(line)[1][""] for line in lines[1:] if line.startswith('["event"')}
    assert {"WorkerJoined", "Submitted", "Reported", "StoreChanged", "Tick"} <= kinds
    played = replay(lines)
    assert played.difference == ""
    assert played.orders > 3 * requests and status.counters["prefix_hit_tokens"] > 0
