#!/usr/bin/env python3
"""Churn of the NVMe tier at three times its capacity: file size, write amplification, and what a get takes early and late.

Each backend alone, in a process of its own, for `--minutes`: one thread puts batches of blocks drawn from a universe three times
as large as the tier, another gets with the same popularity (Zipf, s = 0.9) and compares what comes back. Numbers are those of the tier's own
calls; the page cache is not dropped, which favours payloads in LMDB.

After the churn the tier is opened anew with nothing of it in the page cache: start, and for slab cold gets.

    python bench/churn.py --minutes 5 --json churn.json       both backends, 1 GiB
    python bench/churn.py --minutes 30 --backends slab        the long form
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from octavo.figures import Figure, Figures, quantile, write_figures
from octavo_kvstore.block import Block
from octavo_kvstore.tier import Put
from octavo_kvstore.tiers.lmdb_values import LmdbTier
from octavo_kvstore.tiers.slab import SlabTier

BLOCK_BYTES = 368_640
BATCH_BLOCKS = 8
COLD_GETS = 300
COLD_ROWS = (("p50_cold", 0.5), ("p99_cold", 0.99))
OVER = 3
"""The universe of blocks in capacities."""
LAYOUT = hashlib.sha256(b"churn").digest()
BACKENDS = {"slab": SlabTier, "lmdb": LmdbTier}


class Universe:
    """Blocks by number, each a window of one random buffer that begins with its own key."""

    def __init__(self, count: int) -> None:
        self.keys = [hashlib.sha256(number.to_bytes(8, "little")).digest() for number in range(count)]
        self._noise = random.Random(1).randbytes(BLOCK_BYTES + 65_536)
        weights = 1.0 / np.arange(1, count + 1) ** 0.9
        self._popular = np.cumsum(weights / weights.sum())

    def draw(self, source: np.random.Generator) -> int:
        return int(np.searchsorted(self._popular, source.random()))

    def block(self, number: int) -> Block:
        key = self.keys[number]
        at = int.from_bytes(key[:2], "little")
        payload = key + self._noise[at : at + BLOCK_BYTES - len(key)]
        return Block(key, b"", LAYOUT, xxhash.xxh3_64_intdigest(payload), payload)


def churn(backend: str, capacity_bytes: int, minutes: float, puts_per_s: float, folder: Path) -> dict[str, Any]:
    """One backend; runs in a process of its own, so that its I/O counters are the tier's."""
    universe = Universe(OVER * capacity_bytes // BLOCK_BYTES)
    tier = BACKENDS[backend](folder, capacity_bytes)
    began_s, io_before = time.monotonic(), written_bytes()
    ends_s = began_s + 60 * minutes
    gets: list[tuple[float, float, bool]] = []
    wrong: list[int] = []
    largest = 0

    def read() -> None:
        source = np.random.default_rng(2)
        while time.monotonic() < ends_s:
            number = universe.draw(source)
            started_s = time.perf_counter()
            found = tier.get(universe.keys[number], LAYOUT)
            took_s = time.perf_counter() - started_s
            if found is not None and bytes(found.payload[:32]) != universe.keys[number]:
                wrong.append(number)
            gets.append((time.monotonic() - began_s, took_s, found is not None))
            time.sleep(0.002)

    reader = threading.Thread(target=read)
    reader.start()
    source = np.random.default_rng(3)
    outcomes = dict.fromkeys(Put, 0)
    batches = 0
    while time.monotonic() < ends_s:
        blocks = [universe.block(universe.draw(source)) for _ in range(BATCH_BLOCKS)]
        for outcome in tier.put_many(blocks)[0]:
            outcomes[outcome] += 1
        batches += 1
        if batches % 50 == 0:
            largest = max(largest, on_disk(folder))
        time.sleep(max(0.0, began_s + batches * BATCH_BLOCKS / puts_per_s - time.monotonic()))
    reader.join()
    tier.close()
    payload_bytes = tier.written_bytes
    amplification = (written_bytes() - io_before) / payload_bytes
    start_s, cold_s = reopened(backend, folder, capacity_bytes)
    return {
        "start_s": start_s,
        "cold_s": cold_s,
        "gets": gets,
        "wrong": len(wrong),
        "largest_bytes": max(largest, on_disk(folder)),
        "amplification": amplification,
        "turnovers": payload_bytes / capacity_bytes,
        "refused": outcomes[Put.REFUSED],
        "commits": tier.commits,
    }


def reopened(backend: str, folder: Path, capacity_bytes: int) -> tuple[float, list[float]]:
    """Seconds to open the tier as the churn left it, and of gets; no page of the files is in the cache before either."""
    drop_page_cache(folder)
    began_s = time.perf_counter()
    tier = BACKENDS[backend](folder, capacity_bytes)
    start_s = time.perf_counter() - began_s
    drop_page_cache(folder)  # the probe of the start has read them
    took: list[float] = []
    keys = tier.keys() if backend == "slab" else []  # what a process has mapped cannot be taken out of the cache
    for key in random.Random(4).sample(keys, min(COLD_GETS, len(keys))):
        began_s = time.perf_counter()
        found = tier.get(key, LAYOUT)
        took.append(time.perf_counter() - began_s)
        if found is None:
            raise RuntimeError("a block that is held did not come back")
    tier.close()
    return start_s, took


def drop_page_cache(folder: Path) -> None:
    for path in folder.iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def written_bytes() -> int:
    """What this process has caused to be written to disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


def in_process(*arguments: Any) -> dict[str, Any]:
    """`churn` in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(churn, arguments)


def figures_of(backend: str, result: dict[str, Any], capacity_bytes: int, minutes: float) -> list[Figure]:
    hits = [(at_s, 1000 * took_s) for at_s, took_s, hit in result["gets"] if hit]
    third_s = 20 * minutes
    early, late = [ms for at, ms in hits if at < third_s], [ms for at, ms in hits if at >= 2 * third_s]
    cold = result["cold_s"]
    rows = [
        ("disk_over_capacity", result["largest_bytes"] / capacity_bytes, "ratio", 1),
        ("write_amplification", result["amplification"], "ratio", 1),
        ("turnovers", result["turnovers"], "capacities", 1),
        ("get_p50_first_third", quantile(early, 0.5), "ms", len(early)),
        ("get_p50_last_third", quantile(late, 0.5), "ms", len(late)),
        ("get_p50_last_over_first", quantile(late, 0.5) / quantile(early, 0.5), "ratio", len(late)),
        ("get_p99_first_third", quantile(early, 0.99), "ms", len(early)),
        ("get_p99_last_third", quantile(late, 0.99), "ms", len(late)),
        ("get_p99_last_over_first", quantile(late, 0.99) / quantile(early, 0.99), "ratio", len(late)),
        *(("get_" + name, 1000 * quantile(cold, share), "ms", len(cold)) for name, share in COLD_ROWS if cold),
        ("start", result["start_s"], "s", 1),
        ("hit_share", len(hits) / max(1, len(result["gets"])), "ratio", len(result["gets"])),
        ("refused", float(result["refused"]), "blocks", 1),
        ("wrong", float(result["wrong"]), "blocks", len(hits)),
    ]
    return [Figure(f"{backend}/{name}", value, unit, max(1, n)) for name, value, unit, n in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="of each backend")
    parser.add_argument("--capacity-bytes", type=int, default=2**30, help="of the tier")
    parser.add_argument("--puts-per-s", type=float, default=400.0, help="blocks offered per second, at most")
    parser.add_argument("--backends", default="slab,lmdb", help="comma-separated")
    parser.add_argument("--folder", default="", help="where the tier lies; empty: a temporary folder")
    parser.add_argument("--json", default="", help="write the figures to this file")
    given = parser.parse_args()
    results: list[Figure] = []
    for backend in given.backends.split(","):
        with tempfile.TemporaryDirectory(prefix="octavo-churn-", dir=given.folder or None) as folder:
            result = in_process(backend, given.capacity_bytes, given.minutes, given.puts_per_s, Path(folder))
        results += figures_of(backend, result, given.capacity_bytes, given.minutes)
    config = {
        "minutes": given.minutes,
        "capacity_bytes": given.capacity_bytes,
        "block_bytes": BLOCK_BYTES,
        "over": OVER,
    }
    figures = Figures("churn", tuple(results), config)
    for item in results:
        print(f"{item.name:40} {item.value:10.4g} {item.unit}")
    if given.json:
        write_figures(Path(given.json), figures)
    print(json.dumps(config))


if __name__ == "__main__":
    main()
