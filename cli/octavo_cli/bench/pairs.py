"""Request by request: the values of a run that a comparison pairs with those of another run of the same workload."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

from octavo_cli.bench.sample import Run, Sample
from octavo_cli.bench.work import Workload

PAIRED: Mapping[str, Callable[[Sample], float | None]] = {
    "ttft": lambda sample: sample.ttft_ms,
    "itl": lambda sample: statistics.fmean(sample.gaps_ms) if sample.gaps_ms else None,
    "tpot": lambda sample: sample.tpot_ms,
    "e2e": lambda sample: sample.e2e_ms,
}
"""Milliseconds of one request; its ITL is the mean of its gaps."""


def samples_of(run: Run, workload: Workload) -> dict[str, list[float | None]]:
    """Metric -> one value per turn of the workload, in its order; None where it was not sent or has no such value."""
    found = {sample.key: sample for sample in run.samples if not sample.duplicate}
    keys = [
        (session.name, number)
        for session in workload.sessions
        if not session.duplicate
        for number in range(len(session.turns))
    ]
    rows: dict[str, list[float | None]] = {}
    for name, of in PAIRED.items():
        values = [of(found[key]) if key in found and found[key].outcome == "ok" else None for key in keys]
        if any(value is not None for value in values):
            rows[name] = [None if value is None else round(value, 4) for value in values]
    return rows
