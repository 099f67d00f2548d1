"""Measures the cells of one group, and reads those of shorter outputs off the longest answer."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from octavo.figures import Figure

from octavo_cli.bench.matrix import PAUSE_S, SAMPLING, SHOWN, Group
from octavo_cli.bench.runner import Asking, Runner
from octavo_cli.bench.sample import Run, Sample
from octavo_cli.bench.slo import Slo
from octavo_cli.bench.summary import summarize
from octavo_cli.bench.target import Described, Target


@dataclass(slots=True)
class GroupRuns:
    """What the laps of a group gave: runs by state (`empty-cache`, or `warm` and the pause before it)."""

    group: Group
    runs: dict[tuple[str, str], list[Run]] = field(default_factory=dict)

    async def lap(self, target: Target, described: Described, clients: int, number: int) -> None:
        """Asks for the common part; all clients at once on an otherwise empty cache; then the same again after each pause.

        The cache is empty because the salt is new. Raises OctavoError when the target is gone.
        """
        group = self.group
        temperature, top_p = SAMPLING[group.sampling]
        asking = Asking(temperature, top_p, cache_salt=f"matrix-{uuid.uuid4().hex[:12]}")
        runner = Runner(target, described, asking)
        if head := group.head():
            await runner.closed_loop([head], 1)
        sessions = group.sessions(clients, number)
        self._note("empty-cache", group.pauses[0], await runner.closed_loop(sessions, clients))
        for pause in group.pauses:
            await asyncio.sleep(PAUSE_S[pause])
            self._note("warm", pause, await runner.closed_loop(sessions, clients))

    async def empty(self, target: Target, described: Described, clients: int, number: int) -> None:
        """The first half of a lap."""
        temperature, top_p = SAMPLING[self.group.sampling]
        asking = Asking(temperature, top_p, cache_salt=f"matrix-{uuid.uuid4().hex[:12]}")
        sessions = self.group.sessions(clients, number)
        self._note(
            "empty-cache", self.group.pauses[0], await Runner(target, described, asking).closed_loop(sessions, clients)
        )

    def _note(self, state: str, pause: str, run: Run) -> None:
        self.runs.setdefault((state, pause), []).append(run)

    def figures(self) -> dict[str, list[Figure]]:
        """The shown figures of every cell in every state, by the row's name."""
        found = {}
        for (state, pause), runs in self.runs.items():
            for tokens in self.group.outputs:
                whole = joined([cut(run, tokens) for run in runs])
                kept = [item for item in summarize(whole, Slo()) if item.name in SHOWN]
                found[f"{self.group.cell(tokens, pause).name}/{state}"] = kept
        return found


def cut(run: Run, tokens: int) -> Run:
    """The run as it was when each answer had so many tokens; answers that ended before are as they are."""
    return Run(tuple(_cut(sample, tokens) for sample in run.samples), run.client_cpu_s)


def _cut(sample: Sample, tokens: int) -> Sample:
    if sample.output_tokens <= tokens:
        return sample
    kept: list[tuple[float, int]] = []
    left = tokens
    for at_s, count in sample.arrivals:
        if left <= 0:
            break
        kept.append((at_s, min(count, left)))
        left -= count
    if left > 0:  # the server's count is larger than what came in chunks
        return sample
    server = replace(sample.server, e2e_ms=None)
    return replace(
        sample, arrivals=kept, ended_s=kept[-1][0], outcome="ok", output_tokens=tokens, server=server, reason=""
    )


def joined(runs: Sequence[Run]) -> Run:
    """Runs one behind the other as one, so that their lengths add up."""
    samples: list[Sample] = []
    ends_s = 0.0
    for run in runs:
        shift_s = ends_s - run.began_s
        for sample in run.samples:
            arrivals = [(at_s + shift_s, count) for at_s, count in sample.arrivals]
            samples.append(
                replace(
                    sample,
                    arrivals=arrivals,
                    scheduled_s=sample.scheduled_s + shift_s,
                    sent_s=sample.sent_s + shift_s,
                    ended_s=sample.ended_s + shift_s,
                )
            )
        ends_s += run.wall_s
    return Run(tuple(samples), sum(run.client_cpu_s for run in runs))
