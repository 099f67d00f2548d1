"""What a beam search costs beside as many independent choices: the same prompt and tokens, by turns on one cluster.

    python bench/beams.py [--json FILE] [--width 4] [--tokens 64] [--rounds 7]

One worker. Choices step without waiting for the scheduler; beams wait after each step for what the scheduler makes of all of
them, and those that go on from another one get a copy of its partial block.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))

from cluster import Cluster
from octavo.client import AsyncClient
from octavo.figures import Figure, Figures, figure_of, quantile, write_figures

PROMPT = [1000 + (index * 7919) % 40000 for index in range(128)]


async def once(client: AsyncClient, tokens: int, **options: Any) -> tuple[float, float, float]:
    """Milliseconds per step of one request, its device time in milliseconds, and its KV in MB x s."""
    began = time.perf_counter()
    answer = await client.generate(PROMPT, max_tokens=tokens, ignore_eos=True, **options)
    took_ms = (time.perf_counter() - began) * 1e3
    cost = answer.cost
    return took_ms / tokens, (cost.prefill_device_us + cost.decode_device_us) / 1e3, cost.kv_pool_byte_s / 1e6


async def compare(folder: Path, width: int, tokens: int, rounds: int) -> dict[str, list[tuple[float, float, float]]]:
    """Rows of `once` by kind, in turn; the first round warms up and is left out."""
    kinds: dict[str, dict[str, Any]] = {
        "choices": {"n": width, "temperature": 1.0, "seed": 1},
        "beams": {"beam_width": width, "n": 1},
    }
    rows: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in kinds}
    cluster = Cluster(folder)
    try:
        await cluster.up()
        async with AsyncClient(cluster.grpc_address) as client:
            for number in range(rounds + 1):
                for kind, options in kinds.items():
                    row = await once(client, tokens, **options)
                    if number:
                        rows[kind].append(row)
    finally:
        cluster.down()
    return rows


def figures_of(rows: dict[str, list[tuple[float, float, float]]]) -> list[Figure]:
    """Medians of both kinds, and their ratios round by round."""
    figures = []
    for at, (name, unit) in enumerate((("step", "ms"), ("device", "ms"), ("kv", "MB x s"))):
        for kind, found in rows.items():
            figures.append(figure_of(f"{name}/{kind}", [row[at] for row in found], unit, 0.5))
        pairs = zip(rows["beams"], rows["choices"], strict=True)
        figures.append(figure_of(f"{name}/ratio", [beams[at] / choices[at] for beams, choices in pairs], "ratio", 0.5))
    return figures


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--width", type=int, default=4, help="beams, and choices")
    parser.add_argument("--tokens", type=int, default=64, help="of each")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(compare(Path(folder), given.width, given.tokens, given.rounds))
    for name, unit, at in (("a step", "ms", 0), ("device time", "ms", 1), ("KV", "MB x s", 2)):
        ratios = [beams[at] / choices[at] for beams, choices in zip(rows["beams"], rows["choices"], strict=True)]
        medians = {kind: quantile([row[at] for row in found], 0.5) for kind, found in rows.items()}
        print(
            f"{name:12} choices {medians['choices']:8.2f} {unit}  beams {medians['beams']:8.2f} {unit}  "
            f"ratio {quantile(ratios, 0.5):.2f} ({quantile(ratios, 0.25):.2f} to {quantile(ratios, 0.75):.2f})"
        )
    if given.json:
        conditions = {"width": given.width, "tokens": given.tokens}
        write_figures(given.json, Figures("beams", tuple(figures_of(rows)), conditions))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
