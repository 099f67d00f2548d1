"""How fast blocks come from another host's kvstore, beside a bare stream of chunks of the same size in the same round."""

from __future__ import annotations

from collections.abc import Callable

from octavo.figures import Figure, figure_of, quantile

from octavo_cli.cache_bench.rates import BLOCK_BYTES, BLOCKS
from octavo_cli.engine_bench.child import Child


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
