"""Another host's kvstore: how fast blocks come from it, beside a bare stream of chunks of the same size; and a first token from there."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from octavo.errors import OctavoError
from octavo.figures import Figure, figure_of, quantile

from octavo_cli.cache_bench.rates import BLOCK_BYTES, BLOCKS
from octavo_cli.cache_bench.stores import StoreProbe, lone_store
from octavo_cli.cache_bench.ttft import Asker, Samples, pool_of
from octavo_cli.engine_bench.child import Child
from octavo_cli.engine_bench.services import Services, running_services

PEER_TIMEOUT_S = 30.0


def measure_remote(rounds: int, tell: Callable[[str], None]) -> list[Figure]:
    """`restore/remote` with `floor/chunk_stream`: two processes of this machine; the first round is dropped. Raises OctavoError."""
    tell(f"remote stream: {BLOCKS} blocks of {BLOCK_BYTES} bytes, {rounds} rounds")
    samples: dict[str, list[float]] = {"raw": [], "fetch": []}
    arguments = ["--blocks", str(BLOCKS), "--block-bytes", str(BLOCK_BYTES)]
    with Child.of_module("the remote stream", "octavo_kvstore.bench.stream_link", arguments) as child:
        for number in range(rounds + 1):
            # in turn and the other way round each time, so that neither always runs on the warmer machine
            for row in ("raw", "fetch") if number % 2 else ("fetch", "raw"):
                rate = float(child.ask(do=row)["mb_per_s"])
                if number:
                    samples[row].append(rate)
    return remote_figures(samples["fetch"], samples["raw"])


def remote_figures(fetched: list[float], raw: list[float]) -> list[Figure]:
    """The median rates in MB/s, and the median over the rounds of raw / fetched."""
    shown = figure_of("restore/remote", fetched, "MB/s")
    ratio = quantile([floor / value for floor, value in zip(raw, fetched, strict=True)], 0.5)
    return [
        Figure(shown.name, shown.value, shown.unit, shown.n, shown.spread, floor_ratio=ratio),
        figure_of("floor/chunk_stream", raw, "MB/s"),
    ]


def measure_remote_ttft(
    flags: Sequence[str], rounds: int, seed: int, samples: Samples, tell: Callable[[str], None]
) -> None:
    """Row hit/remote: prefixes that one cluster computed, whose NVMe tier then stands for another host beside a second cluster.

    The other host reads each block from its disk when it is asked for it. Raises OctavoError.
    """
    with tempfile.TemporaryDirectory(prefix="octavo-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        warm = ["--cache.nvme_path", str(folder / "warm")]
        tell("remote: computing on the first host")
        with running_services([*flags, *warm]) as services:
            asyncio.run(_compute(services, rounds, seed))
        with running_services(flags) as services:
            scheduler = next(item.address for item in services.state.services if item.kind == "scheduler")
            far = [
                "--kvstore.scheduler",
                scheduler,
                "--kvstore.store_id",
                "far",
                "--kvstore.peer_listen",
                "127.0.0.1:0",
            ]
            with lone_store(folder, [*flags, *warm, *far]):
                asyncio.run(_ask_again(services, rounds, seed, samples, tell))


async def _compute(services: Services, rounds: int, seed: int) -> None:
    asker = Asker(services, seed)
    with StoreProbe.of_cluster(services.state) as store:
        for prefix in [asker.prefix() for _ in range(max(rounds, 6))]:
            await asker.ttft_ms(prefix)
            await asyncio.to_thread(store.settle, pool_of(services).prefix_blocks)
    await asker.close()


async def _ask_again(services: Services, rounds: int, seed: int, samples: Samples, tell: Callable[[str], None]) -> None:
    asker, pool = Asker(services, seed), pool_of(services)
    prefixes = [asker.prefix() for _ in range(max(rounds, 6))]
    with StoreProbe.of_cluster(services.state) as store:
        await _until_peer(store)
        await asker.ttft_ms(asker.prefix())
        for number, prefix in enumerate(prefixes):
            tell(f"remote: {number + 1} of {len(prefixes)}")
            before = await asyncio.to_thread(store.figures)
            ms = await asker.ttft_ms(prefix)
            after = await asyncio.to_thread(store.figures)
            if after["remote_blocks"] - before["remote_blocks"] >= 0.9 * pool.prefix_blocks:
                samples.add("hit/remote", ms)
            else:
                samples.missed["hit/remote"] = samples.missed.get("hit/remote", 0) + 1
    await asker.close()


async def _until_peer(store: StoreProbe) -> None:
    deadline_s = time.monotonic() + PEER_TIMEOUT_S
    while not (await asyncio.to_thread(store.figures))["peers_answering"]:
        if time.monotonic() > deadline_s:
            raise OctavoError(f"the scheduler named no other kvstore within {PEER_TIMEOUT_S:.0f} s")
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)  # its inventory
