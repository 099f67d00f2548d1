"""Standing orders: a slow scheduler-worker link never starves the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from cluster import Cluster, DelayProxy, free_port, read
from octavo.v1 import inference_pb2 as pb

pytestmark = pytest.mark.e2e


async def test_30_ms_on_the_link_starves_nobody(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(kvstore=False)
    cluster.ports["scheduler_via"] = free_port()
    server = await DelayProxy(cluster.ports["scheduler_via"], cluster.ports["scheduler"], 0.030).start()
    await cluster.up()
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)

        def request(i: int) -> pb.GenerateRequest:
            return pb.GenerateRequest(
                token_ids=pb.TokenIds(ids=[1000 + (i * 97 + k) % 40000 for k in range(20)]),
                sampling=pb.Sampling(temperature=0.0),
                options=pb.Options(max_tokens=100, ignore_eos=True),
            )

        answers = await asyncio.gather(*(read(stub.Generate(request(i))) for i in range(4)))
    assert all(len(answer.ids[0]) == 100 for answer in answers)
    status = await cluster.settle()
    assert status.counters["starved_steps"] == 0
    server.close()
