"""storm: many requests of many shapes at once, some of them cancelled."""

from __future__ import annotations

import asyncio
import random

import grpc.aio
from cluster import Cluster, read
from octavo.v1 import inference_pb2 as pb


async def storm(cluster: Cluster, requests: int, seed: int) -> dict[str, int]:
    """Runs `requests` with at most 24 at once; returns how they ended."""
    rng = random.Random(seed)
    gate = asyncio.Semaphore(24)
    ends: dict[str, int] = {}

    async def one(i: int) -> None:
        length, max_tokens = rng.choice([8, 30, 120, 400]), rng.choice([1, 8, 30, 60])
        n, cancel_after_s = rng.choice([1, 1, 1, 2]), rng.uniform(0, 1.5) if rng.random() < 0.1 else None
        shared = [1000 + k for k in range(rng.choice([0, 64]))]
        ids = shared + [1000 + (i * 7919 + k * 31) % 40000 for k in range(length)]
        request = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=ids),
            sampling=pb.Sampling(temperature=rng.choice([0.0, 0.8]), seed=i),
            options=pb.Options(max_tokens=max_tokens, ignore_eos=True, n=n),
        )
        async with gate:
            call = stub.Generate(request)
            if cancel_after_s is not None:
                asyncio.get_running_loop().call_later(cancel_after_s, call.cancel)
            try:
                answer = await read(call)
            except (grpc.aio.AioRpcError, asyncio.CancelledError):
                assert cancel_after_s is not None, "only cancelled requests may fail"
                ends["cancelled"] = ends.get("cancelled", 0) + 1
                return
            assert answer.terminals == 1
            assert [len(answer.ids[k]) for k in range(n)] == [max_tokens] * n
            ends["finished"] = ends.get("finished", 0) + 1

    async with cluster.channel() as channel:
        stub = cluster.inference(channel)
        await asyncio.gather(*(one(i) for i in range(requests)))
    return ends
