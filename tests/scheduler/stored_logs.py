"""Event logs that are kept: what the core decided, so that work on its speed cannot change that unseen.

    python -m tests.scheduler.stored_logs

writes them anew, with the decisions of now. Do so only where decisions were meant to change, in the same commit.
"""

from __future__ import annotations

import asyncio
import gzip
import io
from dataclasses import replace
from pathlib import Path
from random import Random

from octavo_scheduler.event_log import EventLog
from octavo_scheduler.events import Event
from octavo_scheduler.orders import Effects
from octavo_scheduler.outbox import Update
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.cell_run import CellRun
from octavo_scheduler.simulate.hardware import given_models
from octavo_scheduler.simulate.workload import Row

LOGS = Path(__file__).parent / "logs"
CLASSES = {
    "default": {"ttft_ms": 1000.0, "itl_p99_ms": 40.0},
    "batch": {"weight": 2.0, "policy": "fcfs"},
    "rush": {"ttft_ms": 200.0, "itl_p99_ms": 20.0, "on_overload": "degrade", "degrade_max_tokens": 20.0},
}


class LoggedRun(CellRun):
    """A simulated cell that logs as the driver does."""

    def __init__(self, out: io.StringIO, policy: Policy, workers: int, blocks: int, rows: list[Row]) -> None:
        hardware = replace(given_models()["h200-8b"], num_blocks=blocks, host_blocks=4000)
        super().__init__(policy, hardware, workers, list(enumerate(rows)), 50_000)
        log, handle, collect = EventLog(out, policy, 0), self.core.handle, self.core.collect

        def handled(event: Event) -> Effects:
            text = log.before(event)
            effects = handle(event)
            log.after(text, effects)
            return effects

        def collected(gateway: int) -> list[Update]:
            log.collected(gateway)
            return collect(gateway)

        self.core.handle, self.core.collect = handled, collected  # type: ignore[method-assign]


def simulated_log(order: str, seed: int) -> str:
    """Tenants, classes, deadlines, priorities, shared prefixes, conversations with tools and trials on small pools."""
    draw, at_us = Random(seed), 0
    rows: list[Row] = []
    for number in range(60):
        at_us += int(draw.expovariate(80) * 1e6)
        shared = (f"g{draw.randrange(4)}", draw.choice([128, 256]))
        follows = number > 5 and draw.random() < 0.3
        rows.append(
            Row(
                50_000 if follows else at_us,
                (shared, (str(number), draw.randrange(8, 200))),
                draw.randrange(1, 60),
                max_tokens=draw.choice([0, 128]),
                tenant=f"t{draw.randrange(3)}",
                slo_class=draw.choice(["default", "batch", "rush"]),
                priority=draw.randrange(2),
                deadline_us=draw.choice([0, 0, 300_000]),
                tool="t" if draw.random() < 0.3 else "",
                after=draw.randrange(number) if follows else -1,
            )
        )
    out = io.StringIO()
    policy = Policy(order=order, max_num_seqs=6, slo_classes=CLASSES, counterfactual_share=0.1)
    LoggedRun(out, policy, 3, 120, rows).run()
    return out.getvalue()


def main() -> None:
    """Writes every log."""
    from tests.scheduler.test_event_log import live_log  # which needs pytest

    texts = {order: simulated_log(order, seed) for seed, order in enumerate(("slo-fair", "sjf"))}
    texts["live"] = "\n".join(asyncio.run(live_log(40))) + "\n"
    for name, text in texts.items():
        (LOGS / f"{name}.log.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
