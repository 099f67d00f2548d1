"""Tool pauses: what becomes of the KV of a client that pauses, in the simulator: keep, offload, drop, and the cost model's choice.

    python bench/pauses.py [--json FILE]

Four settings: each fixed way is the best in one of the first three, the last mixes a quick and a slow tool. A figure is the mean
time from call to last token over all finished requests, of agents and of the others beside them; the same input gives
the same figures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from octavo.figures import Figure, Figures, write_figures
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.cell_run import CellResult, CellRun
from octavo_scheduler.simulate.hardware import Hardware
from octavo_scheduler.simulate.workload import Row

WAYS = ("keep", "offload", "drop", "auto")
SEED = 1
WORKER = Hardware(
    "one worker",
    fixed_us=5000.0,
    prefill_token_us=50.0,
    decode_seq_us=300.0,
    context_token_us=0.02,
    num_blocks=1201,
    block_bytes=1_000_000,
    max_num_seqs=16,
    max_model_len=16384,
    host_blocks=20_000,
)


@dataclass(frozen=True, slots=True)
class Setting:
    """Agents whose turns end in tool calls, and single requests beside them. Rates per second."""

    why: str
    prefill_token_us: float
    link_bytes_per_us: float
    context: int
    agents_per_s: float
    others_per_s: float
    returns: float = 1.0
    """Chance that an agent comes back after a turn."""
    agents: int = 60
    tools: dict[str, float] = field(default_factory=dict)
    """Tool -> mean pause in seconds; agents take turns among them."""


SETTINGS = {
    "quick tool": Setting("short pauses, slow link: keep", 50, 300, 1600, 1.2, 4, tools={"quick": 0.3}),
    "slow tool": Setting("long pauses, fast link: offload", 80, 20_000, 1600, 0.7, 2, tools={"slow": 8.0}),
    "gone": Setting("few return, slow link: drop", 20, 50, 800, 4, 4, returns=0.3, tools={"slow": 8.0}),
    "mixed": Setting("a quick and a slow tool", 80, 2000, 1600, 0.7, 2, returns=0.9, tools={"quick": 0.3, "slow": 8.0}),
}


def rows_of(setting: Setting, turns: int = 3) -> list[Row]:
    """Agents of `turns` turns, each announcing its pause, and others with prompts of their own."""
    rng = Random(SEED)
    arrivals: list[tuple[float, str]] = []
    at_s = 0.0
    for number in range(setting.agents):
        at_s += rng.expovariate(setting.agents_per_s)
        arrivals.append((at_s, f"agent{number}"))
    end_s, at_s = at_s, 0.0
    while at_s < end_s:
        at_s += rng.expovariate(setting.others_per_s)
        arrivals.append((at_s, f"other{len(arrivals)}"))
    rows: list[Row] = []
    tools = list(setting.tools.items())
    for number, (at_s, name) in enumerate(sorted(arrivals)):
        if name.startswith("other"):
            rows.append(Row(int(at_s * 1e6), ((name, 400),), 60))
            continue
        tool, mean_s = tools[number % len(tools)]
        before = -1
        for turn in range(turns):
            last = turn == turns - 1
            rows.append(
                Row(
                    int((rng.expovariate(1 / mean_s) if turn else at_s) * 1e6),
                    ((f"{name}/{turn}", 100 if turn else setting.context),),
                    40,
                    tool="" if last else tool,
                    expected_us=0 if last else int(mean_s * 1e6),
                    after=before,
                )
            )
            before = len(rows) - 1
            if rng.random() > setting.returns:
                break
    return rows


def run(setting: Setting, way: str) -> CellResult:
    """One worker, arrivals in order, one way for all pauses."""
    hardware = replace(WORKER, prefill_token_us=setting.prefill_token_us, tier_bytes_per_us=setting.link_bytes_per_us)
    policy = Policy(pause=way, order="fcfs", default_output_tokens=60)
    return CellRun(policy, hardware, 1, list(enumerate(rows_of(setting))), 100_000).run()


def mean_ms(result: CellResult) -> float:
    """Call to last token, over the finished."""
    times_us = [tally.e2e_us for tally in result.tallies if tally.outcome == "finished"]
    return sum(times_us) / len(times_us) / 1000


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args(argv)
    figures: list[Figure] = []
    print(f"{'setting':12}{''.join(f'{way:>10}' for way in WAYS)}  ms from call to last token, mean")
    for name, setting in SETTINGS.items():
        row: list[float] = []
        for way in WAYS:
            result = run(setting, way)
            row.append(mean_ms(result))
            figures.append(Figure(f"pause/{name.replace(' ', '-')}/{way}", row[-1], "ms", len(result.tallies)))
        print(f"{name:12}{''.join(f'{value:10.0f}' for value in row)}  {setting.why}")
    if given.json:
        write_figures(given.json, Figures("pauses", tuple(figures), {"seed": SEED}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
