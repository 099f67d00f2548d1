"""Loads that pay: time to first token when a kvstore holds the prompt, loaded, computed again, both at once, or as predicted.

    python bench/profit.py [--json FILE]
    python bench/profit.py --live [--json FILE] [SETTING ...]

Sixty cases in the simulator: five prompt lengths, four tiers, three loads on the worker. Each is measured four times: with every
load forced, with none, with every load overlapped, and with the scheduler's own choice, which knows nothing of the
link at first. Regret is the choice's time over the best way's, less one. The same input gives the same figures.
--live starts clusters of this machine's CPU and measures three lengths with the prefix in the DRAM tier.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from octavo.figures import Figure, Figures, quantile, write_figures
from octavo.keys import extend_keys
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.cell_run import CellRun
from octavo_scheduler.simulate.hardware import Hardware
from octavo_scheduler.simulate.workload import NAMESPACE, Row, prompt_of

WAYS = ("load", "recompute", "overlap")
LENGTHS = (512, 1024, 2048, 4096, 8192)
STREAMS = (0, 6, 16)
"""Sequences that decode beside the prompt."""
LEARNED, MEASURED = 5, 5
"""Prompts from which the choice learns the link, and those that count."""
REGRET = 0.10
WORKER = Hardware(
    "one worker",
    fixed_us=4000.0,
    prefill_token_us=50.0,
    decode_seq_us=200.0,
    context_token_us=0.02,
    num_blocks=16_001,
    block_bytes=1_000_000,
    max_num_seqs=32,
    max_model_len=16_384,
    host_blocks=40_000,
)


@dataclass(frozen=True, slots=True)
class Tier:
    """A throttled link: bytes per microsecond, and what each load takes beside."""

    bytes_per_us: float
    fixed_us: float


TIERS = {
    "dram": Tier(100_000, 60),
    "peer-dram": Tier(30_000, 300),
    "nvme": Tier(1000, 1500),
    "far": Tier(5, 500_000),
}


@dataclass(frozen=True, slots=True)
class Case:
    length: int
    tier: str
    streams: int

    @property
    def name(self) -> str:
        return f"{self.tier}/{self.length}/{self.streams}-streams"


CASES = tuple(Case(length, tier, streams) for tier in TIERS for length in LENGTHS for streams in STREAMS)


def rows_of(case: Case) -> list[Row]:
    """Streams that decode throughout, and prompts one after another, each with a beginning of its own that the store holds."""
    apart_us = 1_200_000
    prompts = LEARNED + MEASURED
    long = (prompts + 1) * apart_us // 7000
    rows = [Row(number * 1000, ((f"stream{number}", 64),), long) for number in range(case.streams)]
    for number in range(prompts):
        pieces = ((f"document{number}", case.length), (f"question{number}", 32))
        rows.append(Row((number + 1) * apart_us, pieces, 1, slo_class="asked"))
    return rows


def hardware_of(case: Case) -> Hardware:
    tier = TIERS[case.tier]
    streams = case.streams * 3500 // 16  # their output stays in the pool to the end
    blocks = WORKER.num_blocks + streams * 16
    return replace(WORKER, tier_bytes_per_us=tier.bytes_per_us, tier_fixed_us=tier.fixed_us, num_blocks=blocks)


def ttft_ms(case: Case, way: str) -> float:
    """Mean time to the first token of the prompts that count."""
    policy = Policy(
        order="fcfs",
        load_path=way,
        default_output_tokens=1,
        max_overcommit=100.0,
        progress_timeout_us=10**10,
        slo_classes={"default": {}, "asked": {}},
    )
    run = CellRun(policy, hardware_of(case), 1, list(enumerate(rows_of(case))), 1_000_000)
    for number in range(LEARNED + MEASURED):
        keys = extend_keys(NAMESPACE, prompt_of(((f"document{number}", case.length),)), WORKER.block_tokens)
        for store in run.stores.values():
            store.hold(keys)
    asked = [tally for tally in run.run().tallies if tally.row.slo_class == "asked"]
    times = [tally.ttft_us / 1000 for tally in sorted(asked, key=lambda tally: tally.number)[LEARNED:]]
    return sum(times) / len(times)


def measure(case: Case) -> dict[str, float]:
    """Milliseconds by way, `auto` the choice."""
    return {way: ttft_ms(case, way) for way in (*WAYS, "auto")}


def regret(times: dict[str, float]) -> float:
    """What the choice takes over the best way, less one."""
    return times["auto"] / min(times[way] for way in WAYS) - 1


def best(times: dict[str, float]) -> str:
    """The quickest way as measured."""
    return min(WAYS, key=lambda way: times[way])


def sweep() -> list[Figure]:
    """All cases, printed as they come."""
    figures: list[Figure] = []
    won: Counter[str] = Counter()
    missed = 0
    sums: Counter[str] = Counter()
    print(
        f"{'tier/tokens/load':28}"
        + "".join(f"{way:>11}" for way in (*WAYS, "auto"))
        + "     regret  best (ms to first token)"
    )
    for case in CASES:
        times = measure(case)
        share = regret(times)
        won[best(times)] += 1
        missed += share > REGRET
        for way, value in times.items():
            sums[way] += value  # type: ignore[assignment]
            figures.append(Figure(f"ttft/{case.name}/{way}", value, "ms", MEASURED))
        figures.append(Figure(f"regret/{case.name}", share, "ratio", MEASURED))
        print(
            f"{case.name:28}"
            + "".join(f"{times[way]:11.1f}" for way in (*WAYS, "auto"))
            + f"{share:10.1%}  {best(times)}"
        )
    within = len(CASES) - missed
    print(f"within {REGRET:.0%} of the best way: {within} of {len(CASES)}; best: {dict(won)}")
    print("mean: " + ", ".join(f"{way} {value / len(CASES):.1f} ms" for way, value in sums.items()))
    figures.append(Figure("cases_within_regret", within, "cases", len(CASES)))
    figures += [Figure(f"best/{way}", won[way], "cases", len(CASES)) for way in WAYS]
    figures += [Figure(f"ttft_mean/{way}", value / len(CASES), "ms", len(CASES)) for way, value in sums.items()]
    return figures


def live(flags: Sequence[str], rounds: int = 5) -> list[Figure]:
    """One cluster per way; prefixes of three lengths that have left the pool and lie in DRAM."""
    import asyncio

    from octavo_cli.cache_bench.stores import StoreProbe
    from octavo_cli.cache_bench.ttft import Asker, pool_of
    from octavo_cli.engine_bench.services import running_services

    async def measure_way(services: object) -> dict[int, list[float]]:
        asker = Asker(services, 1)  # type: ignore[arg-type]
        found: dict[int, list[float]] = {}
        with StoreProbe.of_cluster(services.state) as store:  # type: ignore[attr-defined]
            size = pool_of(services).block_tokens  # type: ignore[arg-type]
            for length in (256, 512, 1024):
                prefixes = [asker.prefix()[:length] for _ in range(2 * rounds)]
                before = int(store.figures()["held_keys"])
                for number, prefix in enumerate(
                    prefixes, 1
                ):  # one by one: the next takes the blocks of a pool this small
                    await asker.ttft_ms(prefix)
                    await asyncio.to_thread(store.settle, before + number * (length // size))
                for _ in range(4):
                    await asker.ttft_ms(asker.prefix())  # takes the pool
                found[length] = [await asker.ttft_ms(prefix) for prefix in prefixes[:rounds]]
        await asker.close()
        return found

    figures: list[Figure] = []
    by_way: dict[str, dict[int, float]] = {}
    for way in (*WAYS, "auto"):
        own = ["--engine.kv_num_blocks", "80", "--cache.load_path", way]
        with running_services([*own, *flags]) as services:
            times = asyncio.run(measure_way(services))
        by_way[way] = {length: quantile(values, 0.5) for length, values in times.items()}
        figures += [
            Figure(f"live/ttft_p50/dram/{length}/{way}", value, "ms", rounds) for length, value in by_way[way].items()
        ]
        print(f"{way:10}" + "".join(f"{length:6} tokens {value:8.1f} ms" for length, value in by_way[way].items()))
    for length, chosen in by_way["auto"].items():
        share = chosen / min(by_way[way][length] for way in WAYS) - 1
        print(f"regret at {length} tokens: {share:.1%}")
        figures.append(Figure(f"live/regret/dram/{length}", share, "ratio", rounds))
    return figures


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--live", action="store_true", help="measure clusters of this machine instead")
    given, flags = parser.parse_known_args(argv)
    if flags and not given.live:
        parser.error(f"{flags[0]}: only --live takes settings")
    figures = live(flags) if given.live else sweep()
    if given.json:
        write_figures(given.json, Figures("profit", tuple(figures), {"learned": LEARNED, "measured": MEASURED}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
