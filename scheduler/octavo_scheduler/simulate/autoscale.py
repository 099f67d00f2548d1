"""A cell whose number of workers follows the load: what each rule of scaling gives and costs, over the same requests.

Rules look at the cell every LOOK_US and say how many workers they want. A worker that is ordered joins after the scale
delay (machine, image, weights), and is paid for from the order on. One that is too much drains: it takes nothing new and
leaves when the last of its sequences has ended. `spare` workers are kept beyond what the rule wants.

- queue: as many as keep the requests under way below BUSY_SHARE of what the workers seat at once (reactive; what a queue-length
  trigger of KEDA does)
- tokens: as many as the arriving prompt and output tokens need, at the rate that a busy worker computes them (what comes, not what waits)
- slo: as many as serve the arriving work and clear the waiting work by the TTFT target after they have come, both in predicted
  worker time
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from octavo.figures import Figure

from octavo_scheduler.cell import Cell
from octavo_scheduler.events import DrainRequested
from octavo_scheduler.limits.rates import PoolRates
from octavo_scheduler.policy import SECOND_US, Policy
from octavo_scheduler.simulate.cell_run import START_US, CellRun, SimulationBroke
from octavo_scheduler.simulate.hardware import BadPlan, Hardware
from octavo_scheduler.simulate.tally import Tally
from octavo_scheduler.simulate.worker import SimulatedWorker
from octavo_scheduler.simulate.workload import Row
from octavo_scheduler.slo import parse_classes

LOOK_US = 15 * SECOND_US
SETTLE_LOOKS = 8
"""Fewer workers must have been enough for so many looks (two minutes) before the rest is let go."""
BUSY_SHARE = 0.8
"""Of a worker's seats, or of its time, that a rule plans to use."""
DRAIN_LIMIT_US = 600 * SECOND_US
WINDOW_LOOKS = 4
"""Arrivals are counted over so many looks (a minute)."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a fleet grows and shrinks. `delay_us` is from an order to the worker's Hello."""

    rule: str
    delay_us: int
    spare: int = 0
    most: int = 128

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise BadPlan("autoscale", f"{self.rule!r} is no rule; use {', '.join(RULES)}")
        if self.delay_us < 0:
            raise BadPlan("scale_delay", f"{self.delay_us / SECOND_US:g} s must be at least 0")
        if self.spare < 0:
            raise BadPlan("spare", f"{self.spare} must be at least 0")


@dataclass(slots=True)
class Arrivals:
    """What came in the window, per second."""

    tokens: float = 0.0
    work_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Look:
    """What a rule sees."""

    cell: Cell
    rates: PoolRates
    arrivals: Arrivals
    clear_us: float
    """In what time the waiting work is to be cleared."""

    @property
    def under_way(self) -> int:
        """Requests that wait and sequences that run."""
        return len(self.cell.queue) + sum(len(worker.sequences) for worker in self.cell.fleet.workers.values())


def by_queue(look: Look) -> float:
    """Workers whose seats hold what is under way."""
    return look.under_way / (BUSY_SHARE * look.rates.batch(look.cell.rates.mix))


def by_tokens(look: Look) -> float:
    """Workers whose rate of tokens is that of the arrivals."""
    mix = look.cell.rates.mix
    tokens_per_us = (mix.prefill + mix.output) / max(1.0, look.rates.work_us(mix.prefill, mix.output, mix))
    return look.arrivals.tokens / (BUSY_SHARE * tokens_per_us * SECOND_US)


def by_slo(look: Look) -> float:
    """Workers that keep up with the arriving work and clear what waits."""
    backlog = look.cell.queue.load.total.gpu_us / max(1.0, look.clear_us)
    return (look.arrivals.work_us / SECOND_US + backlog) / BUSY_SHARE


RULES: Mapping[str, Callable[[Look], float]] = {"queue": by_queue, "tokens": by_tokens, "slo": by_slo}


class ScalingRun(CellRun):
    """One cell that starts with `workers` and scales between one and `scaling.most`. Call `run` once."""

    def __init__(
        self, policy: Policy, hardware: Hardware, workers: int, rows: Sequence[tuple[int, Row]], scaling: Scaling
    ) -> None:
        super().__init__(policy, hardware, workers + scaling.spare, rows, LOOK_US)
        self._scaling = scaling
        self._policy = policy
        self._joined = workers + scaling.spare
        self._ordered = 0
        self._paid_since: dict[int, int] = dict.fromkeys(self._workers, START_US)
        self._seen: list[int] = []  # arrivals up to each look
        self._fewer: list[int] = []  # what was wanted at the looks in which fewer than there were would do
        classes = parse_classes(policy.slo_classes)
        targets = [item.ttft_ms for item in classes.values() if item.ttft_ms]
        self._clear_us = 1000 * min(targets, default=1000.0) + scaling.delay_us
        self.worker_us = 0
        self.peak_workers = self._joined
        self._at(START_US + LOOK_US, self._look, None)

    # -- what a rule sees ----------------------------------------------------------------------------------------------

    def _arrivals(self, rates: PoolRates) -> Arrivals:
        """Over the window. Outputs are what the core expects, not what the trace knows."""
        cell, tallies = self.core.cell, self.result.tallies
        self._seen.append(len(tallies))
        looks = min(WINDOW_LOOKS, len(self._seen))
        first = self._seen[-1 - WINDOW_LOOKS] if len(self._seen) > WINDOW_LOOKS else 0
        tokens = work_us = 0.0
        for tally in tallies[first:]:
            row = tally.row
            output = cell.history.expect(row.tenant, max(row.max_tokens, row.output_tokens), tally.prompt_tokens)
            tokens += tally.prompt_tokens + output
            work_us += rates.work_us(tally.prompt_tokens, output, cell.rates.mix)
        span_s = looks * LOOK_US / SECOND_US
        return Arrivals(tokens / span_s, work_us / span_s)

    def _look(self, _: None) -> None:
        self._at(self._now_us + LOOK_US, self._look, None)
        cell = self.core.cell
        rates = cell.rates.of(cell.fleet, "", self._now_us)
        if rates is None:
            return
        look = Look(cell, rates, self._arrivals(rates), self._clear_us)
        scaling = self._scaling
        wanted = max(1, math.ceil(RULES[scaling.rule](look))) + scaling.spare
        wanted = min(wanted, scaling.most)
        there = len(cell.fleet.accepting()) + self._ordered
        if wanted > there:
            self._order(wanted - there)
        if wanted >= there:
            self._fewer.clear()
            return
        self._fewer.append(wanted)
        if len(self._fewer) >= SETTLE_LOOKS and not self._ordered:
            self._let_go(there - max(self._fewer))
            self._fewer.clear()

    # -- workers come and go -------------------------------------------------------------------------------------------

    def _order(self, count: int) -> None:
        for _ in range(count):
            self._joined += 1
            self._ordered += 1
            self._paid_since[self._joined] = self._now_us
            self._at(self._now_us + self._scaling.delay_us, self._join, self._joined)

    def _join(self, epoch: int) -> None:
        self._ordered -= 1
        worker = SimulatedWorker(f"w{epoch - 1}", epoch, self._hardware)
        self._workers[epoch] = worker
        self.peak_workers = max(self.peak_workers, len(self._workers))
        self._feed(worker.hello(self._now_us))
        self._at(self._now_us, self._boundary, worker)
        worker.wake_us = self._now_us

    def _let_go(self, count: int) -> None:
        """Those with the least to do drain; one stays."""
        candidates = sorted(self.core.cell.fleet.accepting(), key=lambda worker: (len(worker.sequences), -worker.epoch))
        for worker in candidates[: min(count, len(candidates) - 1)]:
            self._feed(DrainRequested(self._now_us, worker.worker_id, DRAIN_LIMIT_US))

    def _closed(self, epoch: int, why: str) -> None:
        worker = self._workers[epoch]
        if why not in ("drained", "the drain's deadline is over"):
            raise SimulationBroke(f"the core closed worker {worker.worker_id}: {why}")
        del self._workers[epoch]
        worker.wake_us = -1  # its boundaries that are due are no more
        self.result.busy_us += worker.busy_us
        self.worker_us += self._now_us - self._paid_since.pop(epoch)

    def _finish(self) -> None:
        left_us = self.result.busy_us
        super()._finish()
        self.result.busy_us += left_us
        self.worker_us += sum(self._now_us - since_us for since_us in self._paid_since.values())


def compare(
    policy: Policy,
    hardware: Hardware,
    workers: int,
    rows: Sequence[Row],
    scalings: Sequence[Scaling],
    cost_per_hour: float,
) -> list[Figure]:
    """What each rule gives over the same rows: figures `NAME/RULE`. Raises BadPlan."""
    figures: list[Figure] = []
    for scaling in scalings:
        run = ScalingRun(policy, hardware, workers, list(enumerate(rows)), scaling)
        result = run.run()
        figures += _figures(scaling.rule, run, result.tallies, result.ended_us, result.busy_us, cost_per_hour)
    return figures


def _figures(
    rule: str, run: ScalingRun, tallies: Sequence[Tally], span_us: int, busy_us: float, cost_per_hour: float
) -> list[Figure]:
    policy = run.core.cell.policy
    classes = parse_classes(policy.slo_classes)
    good = 0
    for tally in tallies:
        target = classes.get(tally.row.slo_class or policy.default_slo_class)
        good += tally.meets(target.ttft_ms, target.itl_p99_ms) if target is not None else tally.outcome == "finished"
    count, span_s, worker_s = len(tallies), max(1, span_us) / SECOND_US, run.worker_us / SECOND_US
    figures = [
        Figure(f"goodput/{rule}", good / span_s, "requests/s", count),
        Figure(f"slo_attainment/{rule}", good / max(1, count), "share", count),
        Figure(f"worker_hours/{rule}", worker_s / 3600, "h", count),
        Figure(f"workers_mean/{rule}", worker_s / span_s, "workers", count),
        Figure(f"workers_max/{rule}", run.peak_workers, "workers", count),
        Figure(f"busy_share/{rule}", busy_us / max(1.0, run.worker_us), "share", count),
    ]
    if good:
        figures.append(Figure(f"worker_s_per_good_request/{rule}", worker_s / good, "s", good))
        if cost_per_hour:
            figures.append(
                Figure(f"cost_per_good_request/{rule}", worker_s / 3600 * cost_per_hour / good, "cost", good)
            )
    return figures
