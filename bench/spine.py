"""The spine's figures on this machine: start, one stream, sixteen streams, a slow link, a stuck client.

    python bench/spine.py --json spine.json [--pairs 5]

Everything that is compared runs in turn (A B A B ...) in one call; medians are quoted with their quartiles.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))

from cluster import Answer, Cluster, DelayProxy, free_port
from octavo.figures import Figure, Figures, write_figures
from octavo.v1 import inference_pb2 as pb

PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64
LINK_DELAY_S = 0.030


def request(i: int, output: int = OUTPUT_TOKENS, logprobs: int | None = None) -> pb.GenerateRequest:
    """Greedy, fixed length, a prompt of its own: no two share a block."""
    ids = [1000 + (i * 7919 + k * 41 + (i >> 3) * 13) % 40000 for k in range(PROMPT_TOKENS)]
    options = pb.Options(max_tokens=output, ignore_eos=True)
    if logprobs is not None:
        options.logprobs = logprobs
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), sampling=pb.Sampling(temperature=0.0), options=options)


class Run:
    """`streams` requests at once: when each token came, on the client's clock."""

    def __init__(self, started_s: float, answers: list[Answer]) -> None:
        self.ttft_ms = [(answer.arrivals_s[0] - started_s) * 1e3 for answer in answers]
        self.gaps_ms = sorted(
            (b - a) * 1e3 for answer in answers for a, b in zip(answer.arrivals_s, answer.arrivals_s[1:], strict=False)
        )
        tokens = sum(len(answer.ids[0]) for answer in answers)
        first, last = max(answer.arrivals_s[0] for answer in answers), max(answer.arrivals_s[-1] for answer in answers)
        self.decode_tokens_per_s = (tokens - len(answers)) / (last - first)
        self.tokens_per_s = tokens / (last - started_s)

    def itl_ms(self, quantile: float) -> float:
        return self.gaps_ms[min(len(self.gaps_ms) - 1, int(quantile * len(self.gaps_ms)))]


async def streams(cluster: Cluster, count: int, base: int, output: int = OUTPUT_TOKENS) -> Run:
    async with cluster.channel() as channel:
        stub = cluster.inference(channel)

        async def one(i: int) -> Answer:
            answer = Answer()
            async for response in stub.Generate(request(base + i, output)):
                answer.take(response)
            return answer

        started_s = time.monotonic()
        answers = await asyncio.gather(*(one(i) for i in range(count)))
    return Run(started_s, answers)


def figure(name: str, values: list[float], unit: str) -> Figure:
    quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else None
    return Figure(
        name, statistics.median(values), unit, len(values), (quartiles[0], quartiles[2]) if quartiles else None
    )


async def with_cluster(folder: Path, work: Callable[[Cluster], Awaitable[None]], **options: object) -> None:
    cluster = Cluster(folder, **options)  # type: ignore[arg-type]
    try:
        await cluster.up()
        await work(cluster)
    finally:
        cluster.down()


async def measure_streams(folder: Path, pairs: int) -> list[Figure]:
    one: list[Run] = []
    sixteen: list[Run] = []

    async def work(cluster: Cluster) -> None:
        await streams(cluster, 2, 100_000)
        for i in range(pairs):
            one.append(await streams(cluster, 1, 1000 * i))
            sixteen.append(await streams(cluster, 16, 1000 * i + 100))

    await with_cluster(folder, work)
    ratios = [b.decode_tokens_per_s / a.decode_tokens_per_s for a, b in zip(one, sixteen, strict=True)]
    return [
        figure("ttft_p50/streams1", [run.ttft_ms[0] for run in one], "ms"),
        figure("ttft_p50/streams16", [statistics.median(run.ttft_ms) for run in sixteen], "ms"),
        figure("decode/streams1", [run.decode_tokens_per_s for run in one], "tokens/s"),
        figure("decode/streams16", [run.decode_tokens_per_s for run in sixteen], "tokens/s"),
        figure("decode/streams16_over_1", ratios, "ratio"),
        figure("itl_p50/streams16", [run.itl_ms(0.5) for run in sixteen], "ms"),
        figure("itl_p99/streams16", [run.itl_ms(0.99) for run in sixteen], "ms"),
    ]


async def measure_start(folder: Path, runs: int) -> list[Figure]:
    times: list[float] = []
    for i in range(runs):
        started = time.monotonic()

        async def work(cluster: Cluster, started: float = started) -> None:
            times.append(time.monotonic() - started)

        await with_cluster(folder / f"start{i}", work)
    return [figure("start/processes_to_ready", times, "s")]


async def measure_link(folder: Path, pairs: int) -> list[Figure]:
    """Decode throughput of 16 streams with 30 ms added to the scheduler-worker link, over without."""
    slow = Cluster(folder / "slow", kvstore=False)
    slow.ports["scheduler_via"] = free_port()
    server = await DelayProxy(slow.ports["scheduler_via"], slow.ports["scheduler"], LINK_DELAY_S).start()
    plain = Cluster(folder / "plain", kvstore=False)
    ratios = []
    try:
        await plain.up()
        await slow.up()
        for i in range(pairs):
            before = await streams(plain, 16, 1000 * i, 128)
            after = await streams(slow, 16, 1000 * i, 128)
            ratios.append(after.decode_tokens_per_s / before.decode_tokens_per_s)
    finally:
        plain.down()
        slow.down()
        server.close()
    return [figure("link_30ms/decode_over_plain", ratios, "ratio")]


async def measure_slow_client(folder: Path, pairs: int) -> list[Figure]:
    """p99 ITL of 16 streams beside a client that stopped reading, over 17 that read."""
    ratios: list[float] = []

    async def work(cluster: Cluster) -> None:
        for i in range(pairs):
            async with cluster.channel() as channel:
                reader = cluster.inference(channel).Generate(request(900_000 + i, 400))
                drain = asyncio.create_task(read_all(reader))
                before = await streams(cluster, 16, 1000 * i)
                reader.cancel()
                await asyncio.gather(drain, return_exceptions=True)
                stuck = cluster.inference(channel).Generate(request(910_000 + i, 400))
                await anext(aiter(stuck))
                after = await streams(cluster, 16, 1000 * i + 500)
                stuck.cancel()
            ratios.append(after.itl_ms(0.99) / before.itl_ms(0.99))

    await with_cluster(folder, work)
    return [figure("slow_client/itl_p99_over_plain", ratios, "ratio")]


async def read_all(call: object) -> None:
    async for _ in call:  # type: ignore[attr-defined]
        pass


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        results = await measure_start(root, 3)
        results += await measure_streams(root / "streams", arguments.pairs)
        results += await measure_link(root / "link", arguments.pairs)
        results += await measure_slow_client(root / "client", arguments.pairs)
    config = {"prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS, "pairs": arguments.pairs}
    figures = Figures("spine", tuple(results), config)
    for item in results:
        spread = f"  [{item.spread[0]:.2f}, {item.spread[1]:.2f}]" if item.spread else ""
        print(f"{item.name:36} {item.value:9.2f} {item.unit}  n={item.n}{spread}")
    if arguments.json:
        write_figures(arguments.json, figures)


if __name__ == "__main__":
    asyncio.run(main())
