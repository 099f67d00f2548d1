"""bench matrix: every cell of prompt x output x reuse x sampling x pause, per weight format and state."""

from __future__ import annotations

import asyncio
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from octavo.errors import OctavoError
from octavo.figures import Figures, write_figures
from rich.console import Console

from octavo_cli.bench.matrix import Axes, Cell, Skipped, Table, cells, named, run_cell, why_skipped
from octavo_cli.bench.matrix_page import matrix_table, print_matrix
from octavo_cli.bench.options import target_of
from octavo_cli.bench.page import page
from octavo_cli.bench.target import Described, Target
from octavo_cli.bench.work import BadPlan, check_number
from octavo_cli.commands.bench import measured_cluster, own_cluster, show_figures, tell
from octavo_cli.exits import FAILED
from octavo_cli.outputs import check_output

MAX_AFTER_MIN = 7 * 24 * 60.0


def matrix(
    url: Annotated[str, typer.Option("--url", help="grpc://... or http://.../v1; absent: the running cluster.")] = "",
    prompt: Annotated[str, typer.Option("--prompt", help="Prompt lengths, tokens.")] = "128,1024,8192,32768",
    output: Annotated[str, typer.Option("--output", help="Output lengths, tokens.")] = "16,128,512",
    reuse: Annotated[str, typer.Option("--reuse", help="Shares of common prompt.")] = "none,partial,high",
    sampling: Annotated[str, typer.Option("--sampling", help="greedy, top-p.")] = "greedy,top-p",
    pause: Annotated[str, typer.Option("--pause", help="Between a client's requests.")] = "none,short,long",
    variant: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            help="NAME=FLAGS, several times: a fresh cluster with these settings each, such as 'int8=--engine.weights int8'.",
        ),
    ] = None,
    clients: Annotated[int, typer.Option("--clients", min=1, help="At once, in each cell.")] = 4,
    each: Annotated[int, typer.Option("--each", min=1, help="Requests of each client.")] = 2,
    after_min: Annotated[float, typer.Option("--after-min", help="Measure again after so many minutes of load.")] = 0.0,
    run_dir: Annotated[str, typer.Option("--run-dir")] = "",
    api_key: Annotated[str, typer.Option("--api-key")] = "",
    json_path: Annotated[str, typer.Option("--json", help="Write the figures to this file; -: stdout.")] = "",
    html_path: Annotated[str, typer.Option("--html", help="Write one page to this file.")] = "",
) -> None:
    """Measure a matrix of cells in each state; what cannot be measured is listed as skipped, with the reason."""
    check_output("json", json_path)
    check_output("html", html_path)
    check_number("after-min", after_min, most=MAX_AFTER_MIN)
    axes = Axes(_sizes("prompt", prompt), _sizes("output", output), _words(reuse), _words(sampling), _words(pause))
    work = Work(axes, clients, each, after_min, "" if json_path == "-" else json_path)
    for name, flags in _formats(variant or []).items():
        with own_cluster(flags) if variant else measured_cluster(url, run_dir) as address:
            asyncio.run(work.measure(address, api_key, name, fresh=bool(variant)))
    figures = work.figures()
    if json_path == "-":
        show_figures(figures, json_path)
    else:
        work.save()
        print_matrix(figures, Console())
    notes = [f"skipped {item.name}: {item.why}" for item in work.table.skipped]
    if html_path:
        Path(html_path).write_text(page(figures, {}, notes, matrix_table(figures)), encoding="utf-8")
    for note in notes:
        tell(note)
    if work.failed or any(item.name.startswith("errors/") and item.value for item in figures.results):
        raise typer.Exit(FAILED)


@dataclass
class Work:
    """What is measured, and what came of it so far: saved after each cell, since a whole matrix takes an hour and more."""

    axes: Axes
    clients: int
    each: int
    after_min: float
    json_path: str
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
            tell(f"{name}: {len(runnable)} cells, {asked} requests, the ones that warm the cache included")
            self._began_s = time.monotonic()
            for done, cell in enumerate(runnable):
                for state, word in (("empty", "empty-cache"), ("warm", "warm")):
                    tell(
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
        tell(f"{self.after_min:g} minutes of load")
        ends_s = time.monotonic() + self.after_min * 60.0
        while time.monotonic() < ends_s:
            await run_cell(target, described, cell, self.clients, self.each, "empty")
        await self._run(target, described, cell, "empty", cell.name, "aged", name)


def _formats(variants: list[str]) -> dict[str, list[str]]:
    """Name -> settings flags; one that is just served when none is given. Raises BadPlan."""
    if not variants:
        return {"served": []}
    found: dict[str, list[str]] = {}
    for text in variants:
        name, separator, flags = text.partition("=")
        if not separator or not name:
            raise BadPlan(f"--format: {text!r} must be NAME=FLAGS", field="format")
        if name in found:
            raise BadPlan(f"--format: {name!r} is there twice; give each a name of its own", field="format")
        try:
            found[name] = shlex.split(flags)
        except ValueError as error:
            raise BadPlan(f"--format: {text!r}: {error}; close the quotes", field="format") from error
    return found


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _sizes(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in _words(text))
    except ValueError as error:
        raise BadPlan(f"--{option}: {text!r} must be whole numbers with commas", field=option) from error


def register(group: typer.Typer) -> None:
    """Adds the command to the group."""
    group.command()(matrix)
