"""The closed loop as one call, for other benchmarks that need a load on a gateway."""

from __future__ import annotations

from octavo_cli.bench.arrivals import ClosedLoop
from octavo_cli.bench.grpc_target import GrpcTarget
from octavo_cli.bench.serve import Measured, Plan, measure
from octavo_cli.bench.workloads import Shape, make_workload


async def closed_loop(
    url: str, *, concurrency: int, requests: int, prompt_tokens: int, max_tokens: int, seed: int = 0, api_key: str = ""
) -> Measured:
    """`concurrency` clients with random prompts of one length, greedy, on a cold cache. Raises OctavoError.

    `figures` of what it returns has the names of docs/benchmarks.md; `runs["cold"]` has every request.
    """
    shape = Shape(requests=requests, prompt_tokens=prompt_tokens, max_tokens=max_tokens, seed=seed)
    plan = Plan(make_workload("random", shape), ClosedLoop(concurrency), seed=seed)
    async with GrpcTarget(url, api_key) as target:
        return await measure(target, plan)
