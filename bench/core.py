"""What the scheduler's core costs, and how fast the simulator goes around it.

    python bench/core.py --json core.json [--rounds 5]

CPU time of this process, one event at a time, no network and no worker process. Figures that are compared run in turn
in one call; medians are quoted with their quartiles. What an admission does is also counted, in Python functions called and
in instructions of the interpreter: those figures are of a Python version and of no machine.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from array import array
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from octavo.figures import Figure, Figures, figure_of, write_figures
from octavo.keys import extend_keys
from octavo_scheduler.core import Core
from octavo_scheduler.events import ChoiceStart, GatewayJoined, Submitted
from octavo_scheduler.orders import Effects
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.fleet_run import Plan, run_fleet
from octavo_scheduler.simulate.hardware import Hardware, given_models
from octavo_scheduler.simulate.worker import SimulatedWorker
from octavo_scheduler.simulate.workload import NAMESPACE, Row

BLOCK_TOKENS = 16
RUNNING = 64
PLENTY = Policy(max_num_seqs=4096, max_waiting_requests=10**7, max_waiting_prompt_tokens=10**12)
ROOMY = Hardware("roomy", 5000.0, 20.0, 10.0, 0.01, num_blocks=400_000, block_bytes=1, max_num_seqs=4096)


def cpu_us() -> float:
    return time.process_time_ns() / 1000


def request(number: int, prompt_tokens: int, output_tokens: int) -> Submitted:
    """With its keys, as a gateway gives it; shares no block."""
    prompt = array("I", [number, number + 1]) * (prompt_tokens // 2)
    keys = extend_keys(NAMESPACE, prompt, BLOCK_TOKENS)
    sampling = array("I", [output_tokens]).tobytes()
    return Submitted(
        0, 1, f"r{number}", prompt, output_tokens, [ChoiceStart(number)],
        prompt_keys=keys, sampling=sampling, namespace_root=NAMESPACE,
    )  # fmt: skip


class Bed:
    """A core with one gateway and one simulated worker, stepped by hand."""

    def __init__(self, policy: Policy) -> None:
        self.now_us = 0
        self.core = Core(policy)
        self.worker = SimulatedWorker("w0", 1, ROOMY)
        self.core.handle(GatewayJoined(0, 1, "g"))
        self._give(self.core.handle(self.worker.hello(0)))

    def _give(self, effects: Effects) -> None:
        for _epoch, orders in effects.orders:
            self.worker.inbox.append((0, orders))

    def submit(self, event: Submitted) -> float:
        """Microseconds of CPU that the core took."""
        event.now_us = self.now_us
        began_us = cpu_us()
        effects = self.core.handle(event)
        took_us = cpu_us() - began_us
        self._give(effects)
        return took_us

    def step(self) -> list[tuple[float, int, int]]:
        """One iteration of the worker; (CPU microseconds, slots, releases) of each report."""
        self.now_us = max(self.now_us + 1, self.worker.wake_us)
        costs = []
        for report, _owners in self.worker.boundary(self.now_us):
            report.now_us = self.now_us
            began_us = cpu_us()
            effects = self.core.handle(report)
            costs.append((cpu_us() - began_us, len(report.slots), len(report.released)))
            self._give(effects)
        self.core.collect(1)
        return costs


def report_costs(steps: int) -> list[float]:
    """Reports of pure decode steps with 64 sequences running."""
    bed = Bed(PLENTY)
    for number in range(RUNNING):
        bed.submit(request(number, 64, steps + 200))
    for _ in range(100):
        bed.step()
    costs = [cost for _ in range(steps) for cost, slots, _released in bed.step() if slots == RUNNING]
    return costs


def admission_costs(prompt_blocks: int, count: int, base: int) -> list[float]:
    """Submitted and admitted at once, in one event; blocks are taken and granted ahead."""
    bed = Bed(PLENTY)
    events = [request(base + number, prompt_blocks * BLOCK_TOKENS, 16) for number in range(count)]
    costs = [bed.submit(event) for event in events]
    if any(bed.core.cell.queue):
        raise RuntimeError("a request was not admitted at once")
    return costs


def admission_work(count: int = 20) -> tuple[int, int]:
    """(Python functions, instructions) of the plainest of so many admissions: one that is not watched."""
    bed = Bed(PLENTY)
    events = [request(number, 2 * BLOCK_TOKENS, 16) for number in range(2 * count)]
    for event in events[:count]:
        bed.submit(event)
    found: list[tuple[int, int]] = []
    for event in events[count:]:
        counts = {"call": 0, "opcode": 0}

        def trace(frame: FrameType, kind: str, _argument: object, counts: dict[str, int] = counts) -> Any:
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
            if kind in counts:
                counts[kind] += 1
            return trace

        sys.settrace(trace)
        bed.core.handle(event)
        sys.settrace(None)
        found.append((counts["call"], counts["opcode"]))
    return min(found)


def waiting_costs(waiting: int, steps: int) -> tuple[list[float], list[float]]:
    """With so many requests waiting: (submits, reports that release one sequence and admit the next)."""
    bed = Bed(Policy(max_num_seqs=8, max_waiting_requests=10**7, max_waiting_prompt_tokens=10**12))
    submits = [bed.submit(request(number, 32, 4)) for number in range(waiting + 8)]
    bed.step()
    replaced = [cost / released for _ in range(steps) for cost, _slots, released in bed.step() if released]
    return submits[-min(500, waiting) :], replaced


def simulated_rate(workers: int, requests: int, rate: float) -> float:
    """Requests (512 in, 128 out) per CPU second through core and simulated workers."""
    draw, at_s, rows = Random(1), 0.0, []
    for number in range(requests):
        at_s += draw.expovariate(rate)
        rows.append(Row(int(at_s * 1e6), ((str(number), 512),), 128))
    policy = Policy(max_num_seqs=RUNNING, max_waiting_requests=10**7, max_waiting_prompt_tokens=10**12)
    gc.collect()  # the last round's fleet
    began_us = cpu_us()
    run_fleet(Plan(given_models()["h200-8b"], policy, workers), rows)
    return requests / (cpu_us() - began_us) * 1e6


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default="", help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args(argv)
    gc.set_threshold(50_000, 20, 100)  # as the scheduler's process has it
    reports: list[float] = []
    short: list[float] = []
    long: list[float] = []
    few: tuple[list[float], list[float]] = ([], [])
    many: tuple[list[float], list[float]] = ([], [])
    rates: list[float] = []
    for turn in range(arguments.rounds):
        reports += report_costs(300)
        short += admission_costs(2, 300, 1_000_000 * turn)
        long += admission_costs(130, 300, 1_000_000 * turn + 500_000)
        for waiting, kept in ((100, few), (100_000, many)):
            submits, replaced = waiting_costs(waiting, 100 if waiting == 100 else 400)
            kept[0].extend(submits)
            kept[1].extend(replaced)
        rates.append(simulated_rate(100, 4000, 3000.0))
    per_block = [(b - a) / 128 for a, b in zip(sorted(short), sorted(long), strict=True)]
    calls, instructions = admission_work()
    results = [
        figure_of("admit/calls", [calls], "functions"),
        figure_of("admit/instructions", [instructions], "instructions"),
        figure_of("report/running64", reports, "us"),
        figure_of("report_p99/running64", reports, "us", 0.99),
        figure_of("admit/blocks2", short, "us"),
        figure_of("admit/blocks130", long, "us"),
        figure_of("admit/per_block", per_block, "us"),
        figure_of("submit/waiting100", few[0], "us"),
        figure_of("submit/waiting100000", many[0], "us"),
        figure_of("replace/waiting100", few[1], "us"),
        figure_of("replace/waiting100000", many[1], "us"),
        figure_of("simulated/workers100", rates, "requests/s"),
    ]
    figures = Figures("core", tuple(results), {"rounds": arguments.rounds})
    for item in results:
        print(line_of(item))
    if arguments.json:
        write_figures(Path(arguments.json), figures)
    return 0


def line_of(item: Figure) -> str:
    low, high = item.spread or (item.value, item.value)
    return f"{item.name:28} {item.value:10.2f} {item.unit:10} quartiles {low:.2f} to {high:.2f}, n {item.n}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
