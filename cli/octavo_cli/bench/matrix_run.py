"""Runs a matrix: group after group, format after format, within a budget of time, saved as it goes and resumed from what was saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.errors import OctavoError
from octavo.figures import Figures, write_figures

from octavo_cli.bench.matrix import SHOWN, Axes, Group, Skipped, Table, cells, groups, named, path_of, why_skipped
from octavo_cli.bench.matrix_group import GroupRuns
from octavo_cli.bench.options import target_of
from octavo_cli.bench.target import Described, Target
from octavo_cli.bench.work import BadPlan


@dataclass
class MatrixRun:
    """What is measured, and what came of it so far: saved after each group."""

    axes: Axes
    clients: int
    laps: int
    """At most; the second is begun only when the budget holds it."""
    budget_s: float
    """Of all formats together, their start apart."""
    after_min: float
    json_path: str
    say: Callable[[str], None]
    table: Table = field(default_factory=Table)
    served: dict[str, object] = field(default_factory=dict)
    failed: int = 0

    def figures(self) -> Figures:
        """The form of everything measured so far."""
        config = {
            **self._asked(),
            "after_min": self.after_min,
            "budget_s": self.budget_s,
            "served": self.served,
            "skipped": [{"name": item.name, "why": item.why} for item in self.table.skipped],
            "shared": "shorter outputs are the first tokens of the longest; an empty cache is measured once for all pauses",
        }
        return Figures("matrix", tuple(self.table.results), config)

    def _asked(self) -> dict[str, Any]:
        axes = self.axes
        crossed = {"prompt": axes.prompts, "output": axes.outputs, "reuse": axes.reuses, "sampling": axes.samplings}
        return {
            "axes": {name: list(values) for name, values in crossed.items()},
            "pause": list(axes.pauses),
            "clients": self.clients,
        }

    def save(self) -> None:
        if self.json_path:
            write_figures(Path(self.json_path), self.figures())

    def resume(self, before: Figures) -> None:
        """Takes over the rows of an earlier run; what it skipped for want of time is measured now. Raises BadPlan for another matrix."""
        for name, value in self._asked().items():
            if before.config.get(name) != value:
                raise BadPlan(
                    f"--resume: {self.json_path} has {name} {before.config.get(name)!r}, asked is {value!r}; give another --json",
                    field="resume",
                )
        served = before.config.get("served")
        self.served = dict(served) if isinstance(served, Mapping) else {}
        for item in before.results:
            name = next((known for known in SHOWN if item.name.startswith(f"{known}/")), "")
            if name:
                self.table.rows.setdefault(item.name.removeprefix(f"{name}/"), []).append(item)

    async def measure(self, address: str, api_key: str, name: str, ends_s: float, *, fresh: bool) -> None:
        """All cells of one weight format, in every state, until `ends_s` on the monotonic clock; `fresh`: nobody has asked this
        cluster anything. Raises BadPlan when the run that is resumed measured something else."""
        async with target_of(address, api_key) as target:
            described = await target.describe()
            if self.served.get(name, facts := dict(described.facts)) != facts:
                raise BadPlan(
                    f"--resume: {name} was another server in {self.json_path}; give another --json", field="resume"
                )
            self.served[name] = facts
            await self._first(target, described, name, fresh)
            self._list_skipped(described, name)
            runnable = groups(self.axes, described)
            left = [group for group in runnable if not self._is_done(group, name)]
            self.say(
                f"{name}: {len(left)} of {len(runnable)} groups of cells, at most {max(0, ends_s - time.monotonic()):.0f} s"
            )
            await self._laps(target, described, left, name, ends_s)
            if self.after_min and runnable:
                await self._aged(target, described, runnable[0], name)
            else:
                self._skip(f"aged/{name}", "give --after-min 30 to measure again after half an hour of load")
            self.save()

    async def _laps(self, target: Target, described: Described, left: list[Group], name: str, ends_s: float) -> None:
        found = {group: GroupRuns(group) for group in left}
        for number in range(self.laps):
            began_s = time.monotonic()
            for done, group in enumerate(left):
                now_s = time.monotonic()
                if now_s > ends_s and not number:
                    why = f"the budget of {self.budget_s:g} s is over; go on with --resume, or give --budget-s"
                    for late in left[done:]:
                        self._skip(f"{late.name}/{name}", why)
                    return
                spent_s = now_s - began_s
                rest = f", about {spent_s / done * (len(left) - done):.0f} s for the rest" if done else ""
                self.say(f"{name}, lap {number + 1}: {group.name} ({done + 1} of {len(left)}{rest})")
                await self._lap(target, described, found[group], number, name)
                self.save()
            if time.monotonic() * 2 - began_s > ends_s:  # another lap takes as long as this one
                return

    async def _lap(self, target: Target, described: Described, runs: GroupRuns, number: int, name: str) -> None:
        """One group once more; one that a server does not survive is told and does not end the others."""
        try:
            await runs.lap(target, described, self.clients, number)
        except OctavoError as error:
            self._failed(f"{runs.group.name}/{name}", error)
        for row, figures in runs.figures().items():
            self.table.rows[path_of(row, name)] = named(figures, row, name)

    def _failed(self, name: str, error: OctavoError) -> None:
        self.failed += 1
        self._skip(name, f"failed: {error.message}")

    def _is_done(self, group: Group, name: str) -> bool:
        return all(path_of(row, name) in self.table.rows for row in group.rows())

    def _skip(self, name: str, why: str) -> None:
        self.table.skipped.append(Skipped(name, why))

    async def _first(self, target: Target, described: Described, name: str, fresh: bool) -> None:
        """The first request of a fresh cluster, and the states that this server has not."""
        row = path_of("cold-weights", name)
        smallest = Group(min(self.axes.prompts), "none", "greedy", (min(self.axes.outputs),), ("none",))
        if why := why_skipped(smallest.cell(smallest.outputs[0], "none"), described):
            self._skip(f"cold-weights/{name}", why)
        elif fresh and row not in self.table.rows:
            first = GroupRuns(smallest)
            try:
                await first.empty(target, described, 1, 0)
                (figures,) = first.figures().values()
                self.table.rows[row] = named(figures, "cold-weights", name)
            except OctavoError as error:
                self._failed(row, error)
        elif not fresh:
            self._skip(f"cold-weights/{name}", "the cluster ran before; leave out --url and --run-dir for fresh ones")
        for word in ("before-graphs", "after-graphs"):
            self._skip(
                f"{word}/{name}",
                "graphs are captured before ready; on a GPU give --format 'eager=--engine.cuda_graphs false'",
            )

    def _list_skipped(self, described: Described, name: str) -> None:
        for cell in cells(self.axes):
            if why := why_skipped(cell, described):
                self._skip(f"{cell.name}/{name}", why)

    async def _aged(self, target: Target, described: Described, group: Group, name: str) -> None:
        """The first group again after minutes of the same load, as many laps as before it."""
        self.say(f"{name}: {self.after_min:g} minutes of load")
        ends_s = time.monotonic() + self.after_min * 60.0
        number, runs = 0, GroupRuns(group)
        try:
            while time.monotonic() < ends_s or not number:
                number += 1
                await GroupRuns(group).empty(target, described, self.clients, number)
            for lap in range(number + 1, number + 1 + self.laps):
                await runs.lap(target, described, self.clients, lap)
        except OctavoError as error:
            self._failed(f"aged/{name}", error)
            return
        for row, figures in runs.figures().items():
            aged = row.replace("/empty-cache", "/aged").replace("/warm", "/aged-warm")
            self.table.rows[path_of(aged, name)] = named(figures, aged, name)
