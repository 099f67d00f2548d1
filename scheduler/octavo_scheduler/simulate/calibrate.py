"""A worker's cost model out of the event log of a live run.

Step time is fitted by least squares of the relative error with coefficients of at least 0 (coordinate descent on the
normal equations; Lawson and Hanson's problem, which is small here), on the core's own four features.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from octavo.figures import quantile

from octavo_scheduler.event_log import from_plain, read_log
from octavo_scheduler.events import Reported, WorkerJoined
from octavo_scheduler.simulate.hardware import BadPlan, Hardware

LEAST_STEPS = 50
ROUNDS = 500
IDLE_GAP_US = 20_000
"""A longer pause between a report and the next step's begin was waiting for work, not the worker's overhead."""
FEATURES = ("fixed_us", "prefill_token_us", "decode_seq_us", "context_token_us")


@dataclass(frozen=True, slots=True)
class Observation:
    """A report's steps: time of one in microseconds, and what it computed."""

    step_us: float
    prefill_tokens: float
    decode_seqs: int
    context_tokens: int

    def features(self) -> tuple[float, ...]:
        """In the order of FEATURES."""
        return (1.0, self.prefill_tokens, float(self.decode_seqs), float(self.context_tokens))


def hardware_of_log(lines: Iterable[str], name: str) -> Hardware:
    """The worker of a log with one worker (of several: the last that joined), fitted. Raises BadLog and BadPlan.

    The log knows nothing of the client's side: `front_us` and `back_us` keep their defaults.
    """
    hello: WorkerJoined | None = None
    observations: list[Observation] = []
    gaps_us: list[float] = []
    last_us: dict[int, int] = {}
    log = read_log(lines)
    next(log)
    for entry in log:
        if entry is None or entry[0] != "event" or entry[1][""] not in ("WorkerJoined", "Reported"):
            continue
        event = from_plain(entry[1])
        if isinstance(event, WorkerJoined):
            hello = event
        elif isinstance(event, Reported) and event.steps:
            seen = observation(event)
            observations.append(seen)
            gap_us = event.now_us - last_us.get(event.epoch, 0) - event.wall_us
            if event.epoch in last_us and 0 <= gap_us < IDLE_GAP_US:
                gaps_us.append(gap_us / event.steps)
            last_us[event.epoch] = event.now_us
    if hello is None or len(observations) < LEAST_STEPS:
        raise BadPlan(
            "hardware", f"the log has {len(observations)} reports with steps; calibrate on {LEAST_STEPS} or more"
        )
    fixed_us, prefill_token_us, decode_seq_us, context_token_us = (round(value, 4) for value in fit(observations))
    fitted = Hardware(
        name,
        fixed_us,
        prefill_token_us,
        decode_seq_us,
        context_token_us,
        hello.num_blocks,
        hello.block_bytes,
        hello.block_tokens,
        hello.max_num_seqs,
        hello.max_model_len,
    )
    return replace(fitted, gap_us=round(quantile(gaps_us, 0.5), 1) if gaps_us else 0.0)


def observation(report: Reported) -> Observation:
    """What a report with steps says of one of them."""
    steps = report.steps
    return Observation(
        report.wall_us / steps, report.prefill_tokens / steps, report.decode_seqs, sum(report.computed_len)
    )


def fit(observations: list[Observation]) -> list[float]:
    """Coefficients in the order of FEATURES, none negative, the fixed cost above 0."""
    size = len(FEATURES)
    products = [[0.0] * size for _ in range(size)]
    targets = [0.0] * size
    for seen in observations:
        row = [value / seen.step_us for value in seen.features()] if seen.step_us > 0 else [0.0] * size
        for i in range(size):
            targets[i] += row[i]
            for j in range(size):
                products[i][j] += row[i] * row[j]
    found = [0.0] * size
    for _ in range(ROUNDS):
        for i in range(size):
            if products[i][i] > 0:
                rest = sum(products[i][j] * found[j] for j in range(size) if j != i)
                found[i] = max(0.0, (targets[i] - rest) / products[i][i])
    found[0] = max(found[0], 1.0)
    return found


def relative_errors(hardware: Hardware, observations: list[Observation]) -> list[float]:
    """Predicted over observed step time, minus 1."""
    return [
        hardware.step_us(int(seen.prefill_tokens), seen.decode_seqs, seen.context_tokens) / seen.step_us - 1
        for seen in observations
        if seen.step_us > 0
    ]
