"""How fast blocks come back from DRAM and NVMe through a worker's own transfers, each beside its floor in the same round."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from octavo.errors import OctavoError
from octavo.figures import Figure, figure_of, quantile

from octavo_cli.cache_bench.stores import cold_read_mb_per_s, drop_page_cache, lone_store
from octavo_cli.engine_bench.child import Child

BLOCK_BYTES = 368_640
BLOCKS = 64
CHAIN_BYTES = BLOCKS * BLOCK_BYTES


def measure_rates(rounds: int, flags: list[str], tell: Callable[[str], None]) -> list[Figure]:
    """`restore/dram`, `restore/nvme` with their floors, `store/dram`; the first round is dropped. Raises OctavoError."""
    tell(f"restore rates: {BLOCKS} blocks of {BLOCK_BYTES} bytes, {rounds} rounds")
    samples: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as name:
        folder = Path(name)
        # DRAM holds one chain and a block: of two chains that are read in turn each has just been pushed out
        tiers = ["--cache.dram_bytes", str(CHAIN_BYTES + BLOCK_BYTES), "--cache.nvme_bytes", str(CHAIN_BYTES * 16)]
        with lone_store(folder, [*tiers, *flags]) as store:
            arguments = ["--kvstore", store.address, "--blocks", str(BLOCKS), "--block-bytes", str(BLOCK_BYTES)]
            with Child.of_module("tier rates", "octavo_gpuworker.bench.tier_rates", arguments) as child:
                for chain in (0, 1):
                    child.ask(do="put", chain=chain)
                    store.settle(BLOCKS * (chain + 1))
                for number in range(rounds + 1):
                    drop_page_cache(folder)
                    taken = {
                        "file_read": cold_read_mb_per_s(folder / "plain.bin", CHAIN_BYTES),
                        "nvme": _load(child, number % 2, "nvme"),
                        "memcpy": child.ask(do="memcpy", shared=False)["mb_per_s"],
                        "memcpy_shared": child.ask(do="memcpy", shared=True)["mb_per_s"],
                        "dram": _load(child, number % 2, "dram"),
                    }
                    for row, value in taken.items() if number else ():
                        samples.setdefault(row, []).append(value)
                for chain in range(2, 2 + rounds):
                    samples.setdefault("put", []).append(child.ask(do="put", chain=chain)["mb_per_s"])
                    store.settle(BLOCKS * 2)
    return [
        _with_floor("restore/dram", samples["dram"], samples["memcpy"]),
        figure_of("floor/memcpy", samples["memcpy"], "MB/s"),
        figure_of("floor/memcpy_shared", samples["memcpy_shared"], "MB/s"),
        _with_floor("restore/nvme", samples["nvme"], samples["file_read"]),
        figure_of("floor/file_read", samples["file_read"], "MB/s"),
        figure_of("store/dram", samples["put"], "MB/s"),
    ]


def _load(child: Child, chain: int, tier: str) -> float:
    answer = child.ask(do="load", chain=chain)
    if answer["blocks"] != BLOCKS:
        raise OctavoError(f"chain {chain} came back with {answer['blocks']} of {BLOCKS} blocks from {answer['tier']}")
    if answer["tier"] != tier:
        raise OctavoError(f"chain {chain} came from {answer['tier']}, expected {tier}")
    return float(answer["mb_per_s"])


def _with_floor(name: str, samples: list[float], floors: list[float]) -> Figure:
    """The median rate, and the median over the rounds of floor / rate."""
    shown = figure_of(name, samples, "MB/s")
    ratios = [floor / value for floor, value in zip(floors, samples, strict=True)]
    return Figure(name, shown.value, shown.unit, shown.n, shown.spread, floor_ratio=quantile(ratios, 0.5))
