"""Runs a matrix: every cell in every state, format after format, saved as it goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from octavo.errors import OctavoError
from octavo.figures import Figures, write_figures

from octavo_cli.bench.matrix import Axes, Cell, Skipped, Table, cells, named, run_cell, why_skipped
from octavo_cli.bench.options import target_of
from octavo_cli.bench.target import Described, Target


@dataclass
class MatrixRun:
    """What is measured, and what came of it so far: saved after each cell, since a whole matrix takes an hour and more."""

    axes: Axes
    clients: int
    each: int
    after_min: float
    json_path: str
    say: Callable[[str], None]
    table: Table = field(default_factory=Table)
    served: dict[str, object] = field(default_factory=dict)
    failed: int = 0
    _began_s: float = 0.0

    def figures(self) -> Figures:
        """The form of everything measured so far."""
        axes = self.axes
        config = {
            "axes": {"prompt": axes.prompts, "output": axes.outputs, "reuse": axes.reuses, "sampling": axes.samplings},
            "pause": axes.pauses,
            "clients": self.clients,
            "each": self.each,
            "after_min": self.after_min,
            "served": self.served,
            "skipped": [{"name": item.name, "why": item.why} for item in self.table.skipped],
        }
        return Figures("matrix", tuple(self.table.results), config)

    def save(self) -> None:
        if self.json_path:
            write_figures(Path(self.json_path), self.figures())

    async def measure(self, address: str, api_key: str, name: str, *, fresh: bool) -> None:
        """All cells of one weight format, in every state; `fresh`: nobody has asked this cluster anything."""
        async with target_of(address, api_key) as target:
            described = await target.describe()
            self.served[name] = dict(described.facts)
            await self._first(target, described, name, fresh)
            runnable = [cell for cell in cells(self.axes) if not self._skipped(cell, described, name)]
            asked = 3 * len(runnable) * self.clients * self.each
            self.say(f"{name}: {len(runnable)} cells, {asked} requests, the ones that warm the cache included")
            self._began_s = time.monotonic()
            for done, cell in enumerate(runnable):
                for state, word in (("empty", "empty-cache"), ("warm", "warm")):
                    self.say(
                        f"{cell.name}, {word}, {name} ({done + 1} of {len(runnable)}{self._left(done, len(runnable))})"
                    )
                    await self._run(target, described, cell, state, cell.name, word, name)
                self.save()
            if self.after_min and runnable:
                await self._aged(target, described, runnable[0], name)
            else:
                self.table.skipped.append(
                    Skipped(f"aged/{name}", "give --after-min 30 to measure again after half an hour of load")
                )

    async def _first(self, target: Target, described: Described, name: str, fresh: bool) -> None:
        """The first request of a fresh cluster, and the states that this server has not."""
        skip = self.table.skipped.append
        if fresh:
            first = Cell(min(self.axes.prompts), min(self.axes.outputs), "none", "greedy", "none")
            self.table.results += named(await run_cell(target, described, first, 1, 1, "empty"), "cold-weights", name)
        else:
            skip(Skipped(f"cold-weights/{name}", "the cluster ran before; give --format for fresh ones"))
        for word in ("before-graphs", "after-graphs"):
            why = "graphs are captured before ready; on a GPU give --format 'eager=--engine.cuda_graphs false'"
            skip(Skipped(f"{word}/{name}", why))

    def _skipped(self, cell: Cell, described: Described, name: str) -> bool:
        why = why_skipped(cell, described)
        if why:
            self.table.skipped.append(Skipped(f"{cell.name}/{name}", why))
        return bool(why)

    async def _run(self, target: Target, described: Described, cell: Cell, state: str, *where: str) -> None:
        """One cell into the table; one that a server does not survive is told and does not end the others."""
        try:
            found = await run_cell(target, described, cell, self.clients, self.each, state)
        except OctavoError as error:
            self.failed += 1
            self.table.skipped.append(Skipped("/".join(where), f"failed: {error.message}"))
            return
        self.table.results += named(found, *where)

    def _left(self, done: int, cells_in_all: int) -> str:
        if not done:
            return ""
        left_s = (time.monotonic() - self._began_s) / done * (cells_in_all - done)
        return f", about {left_s / 60:.0f} min left" if left_s >= 90 else f", about {left_s:.0f} s left"

    async def _aged(self, target: Target, described: Described, cell: Cell, name: str) -> None:
        """The first cell again after minutes of the same load."""
        self.say(f"{self.after_min:g} minutes of load")
        ends_s = time.monotonic() + self.after_min * 60.0
        while time.monotonic() < ends_s:
            await run_cell(target, described, cell, self.clients, self.each, "empty")
        await self._run(target, described, cell, "empty", cell.name, "aged", name)
