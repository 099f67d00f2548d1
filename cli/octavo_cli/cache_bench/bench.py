"""octavo bench cache: the clusters it starts, and the figures that come of its samples."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.errors import OctavoError
from octavo.figures import Figure, Figures, figure_of, quantile

from octavo_cli.cache_bench.rates import measure_rates
from octavo_cli.cache_bench.remote import measure_remote, measure_remote_ttft
from octavo_cli.cache_bench.ttft import (
    PREFIX_TOKENS,
    SUFFIX_TOKENS,
    Samples,
    measure_nvme,
    measure_recompute,
    measure_warm,
    pool_of,
)
from octavo_cli.engine_bench.services import running_services

PARTS = ("rates", "remote", "ttft", "nvme", "thrash")
POOL_BLOCKS = 200
"""Three prefixes of 66 blocks and little more, at 16 tokens a block."""
ONE_PREFIX_BLOCKS = 72
"""One request and little more: eviction takes the ends of chains first, and what stayed of their beginnings would not be loaded."""


@dataclass(frozen=True, slots=True)
class CachePlan:
    """What is measured."""

    parts: tuple[str, ...]
    rounds: int
    seed: int


def check_parts(names: list[str]) -> tuple[str, ...]:
    """Raises OctavoError naming what is unknown."""
    for name in names:
        if name not in PARTS:
            raise OctavoError(f"--parts: {name!r} is unknown; use {', '.join(PARTS)}", field="parts")
    return tuple(names)


def measure_cache(plan: CachePlan, flags: list[str], tell: Callable[[str], None]) -> tuple[Figures, list[str]]:
    """The figures, and what must be said beside them. Raises OctavoError."""
    samples = Samples()
    results: list[Figure] = []
    block_bytes = 0
    if "rates" in plan.parts:
        results += measure_rates(plan.rounds, flags, tell)
    if "remote" in plan.parts:
        results += measure_remote(plan.rounds, tell)
    pool = ["--engine.kv_num_blocks", str(POOL_BLOCKS)]
    # a row says where its prefix lies, so it is loaded from there, whatever a cold link is predicted to do at first
    tiered = [*pool, "--cache.load_path", "load"]
    if "remote" in plan.parts:
        measure_remote_ttft([*tiered, *flags], plan.rounds, plan.seed + 3, samples, tell)
    if "ttft" in plan.parts:
        with running_services([*tiered, *flags]) as services:
            block_bytes = pool_of(services).block_bytes
            asyncio.run(measure_warm(services, plan.rounds, plan.seed, samples, tell))
    if "nvme" in plan.parts:
        block_bytes = block_bytes or _block_bytes([*pool, *flags])
        dram_bytes = block_bytes * PREFIX_TOKENS // 16 * 5 // 4
        with tempfile.TemporaryDirectory(prefix="octavo-bench-", ignore_cleanup_errors=True) as folder:
            small = ["--engine.kv_num_blocks", str(ONE_PREFIX_BLOCKS), "--cache.load_path", "load"]
            own = [*small, "--cache.dram_bytes", str(dram_bytes), "--cache.nvme_path", folder]
            with running_services([*own, *flags]) as services:
                asyncio.run(measure_nvme(services, plan.rounds, plan.seed + 1, samples, Path(folder), tell))
    if "thrash" in plan.parts:
        tell("thrash without a store")
        with running_services([*pool, "--cache.tiers", "[]", *flags]) as services:
            asyncio.run(measure_recompute(services, plan.rounds, plan.seed + 2, samples))
    results += ttft_figures(samples.ms, {item.name: item.value for item in results}, block_bytes)
    notes = [
        f"{row}: {count} samples left out, their prefix was elsewhere" for row, count in sorted(samples.missed.items())
    ]
    config: dict[str, Any] = {
        "prefix_tokens": PREFIX_TOKENS,
        "suffix_tokens": SUFFIX_TOKENS,
        "rounds": plan.rounds,
        "seed": plan.seed,
        "pool_blocks": POOL_BLOCKS,
        "block_bytes": block_bytes,
        "flags": " ".join(flags),
    }
    return Figures("cache", tuple(results), config), notes


def _block_bytes(flags: list[str]) -> int:
    with running_services(flags) as services:
        return pool_of(services).block_bytes


def ttft_figures(ms: Mapping[str, list[float]], rates: Mapping[str, float], block_bytes: int) -> list[Figure]:
    """p50 and p99 of every row, and what the rows are held against each other for."""
    results: list[Figure] = []
    median = {row: quantile(values, 0.5) for row, values in ms.items()}
    for row, values in ms.items():
        if row.startswith("thrash/"):
            results.append(figure_of(row, values, "ms"))
            continue
        results += [figure_of(f"ttft_p50/{row}", values, "ms"), figure_of(f"ttft_p99/{row}", values, "ms", 0.99)]
    if {"cold", "off"} <= median.keys():
        pairs = [a / b - 1 for a, b in zip(ms["cold"], ms["off"], strict=True)]
        results.append(figure_of("cold_overhead", pairs, "ratio"))
    for name, above, below in (("hbm_over_cold", "hit/hbm", "cold"), ("dram_over_hbm", "hit/dram", "hit/hbm")):
        if {above, below} <= median.keys():
            results.append(Figure(name, median[above] / median[below], "ratio", len(ms[above])))
    if {"hit/hbm", "hit/nvme"} <= median.keys() and "floor/file_read" in rates:
        size = block_bytes * PREFIX_TOKENS // 16
        bound_ms = median["hit/hbm"] + size / (0.7 * rates["floor/file_read"] * 1e3) + 5.0
        results.append(Figure("nvme_over_bound", median["hit/nvme"] / bound_ms, "ratio", len(ms["hit/nvme"])))
    return results
