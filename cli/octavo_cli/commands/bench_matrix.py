"""bench matrix: every cell of prompt x output x reuse x sampling x pause, per weight format and state."""

from __future__ import annotations

import asyncio
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer
from octavo.figures import Figure, Figures

from octavo_cli.bench.matrix import Axes, Cell, Skipped, Table, cells, named, run_cell, why_skipped
from octavo_cli.bench.options import target_of
from octavo_cli.bench.page import page
from octavo_cli.bench.target import Described, Target
from octavo_cli.bench.work import BadPlan, check_number
from octavo_cli.commands.bench import measured_cluster, own_cluster, show_figures, tell
from octavo_cli.exits import FAILED
from octavo_cli.outputs import check_output

MAX_AFTER_MIN = 7 * 24 * 60.0
STATES = ("cold-weights", "empty-cache", "warm", "before-graphs", "after-graphs", "aged")


def matrix(
    url: Annotated[str, typer.Option("--url", help="grpc://... or http://.../v1; absent: the running cluster.")] = "",
    prompt: Annotated[str, typer.Option("--prompt", help="Prompt lengths, tokens.")] = "128,1024,8192,32768",
    output: Annotated[str, typer.Option("--output", help="Output lengths, tokens.")] = "16,128,512",
    reuse: Annotated[str, typer.Option("--reuse", help="Shares of common prompt.")] = "none,partial,high",
    sampling: Annotated[str, typer.Option("--sampling")] = "greedy,top-p",
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
    table = Table()
    served: dict[str, object] = {}
    for name, flags in _formats(variant or []).items():
        cluster = own_cluster(flags) if variant else measured_cluster(url, run_dir)
        fresh = bool(variant)
        with cluster as address:
            work = _measure(address, api_key, axes, name, fresh, (clients, each), after_min, table)
            served[name] = asyncio.run(work)
    config = {
        "axes": {"prompt": axes.prompts, "output": axes.outputs, "reuse": axes.reuses, "sampling": axes.samplings},
        "pause": axes.pauses,
        "clients": clients,
        "each": each,
        "served": served,
        "skipped": [{"name": item.name, "why": item.why} for item in table.skipped],
    }
    figures = Figures("matrix", tuple(table.results), config)
    show_figures(figures, json_path)
    notes = [f"skipped {item.name}: {item.why}" for item in table.skipped]
    if html_path:
        Path(html_path).write_text(page(figures, {}, notes), encoding="utf-8")
    for note in notes:
        tell(note)
    if any(item.name.startswith("errors/") and item.value for item in table.results):
        raise typer.Exit(FAILED)


async def _measure(
    address: str,
    api_key: str,
    axes: Axes,
    name: str,
    fresh: bool,
    size: tuple[int, int],
    after_min: float,
    table: Table,
) -> object:
    """All cells of one weight format into the table; what the target says of itself."""
    async with target_of(address, api_key) as target:
        described = await target.describe()
        if fresh:
            first = Cell(min(axes.prompts), min(axes.outputs), "none", "greedy", "none")
            table.results += named(await run_cell(target, described, first, 1, 1, "empty"), "cold-weights", name)
        else:
            table.skipped.append(
                Skipped(f"cold-weights/{name}", "the cluster ran before; give --format for fresh ones")
            )
        for word in ("before-graphs", "after-graphs"):
            table.skipped.append(
                Skipped(
                    f"{word}/{name}",
                    "graphs are captured before ready; on a GPU give --format 'eager=--engine.cuda_graphs false'",
                )
            )
        runnable = []
        for cell in cells(axes):
            if why := why_skipped(cell, described):
                table.skipped.append(Skipped(f"{cell.name}/{name}", why))
            else:
                runnable.append(cell)
        for cell in runnable:
            for state, word in (("empty", "empty-cache"), ("warm", "warm")):
                tell(f"{cell.name}, {word}, {name}")
                table.results += named(await run_cell(target, described, cell, *size, state), cell.name, word, name)
        if after_min and runnable:
            table.results += named(await _aged(target, described, runnable[0], size, after_min), "aged", name)
        else:
            table.skipped.append(Skipped(f"aged/{name}", "give --after-min 30 to measure again after half an hour"))
        return dict(described.facts)


async def _aged(
    target: Target, described: Described, cell: Cell, size: tuple[int, int], after_min: float
) -> list[Figure]:
    """The first cell again after minutes of the same load."""
    tell(f"{after_min:g} minutes of load")
    ends_s = time.monotonic() + after_min * 60.0
    while time.monotonic() < ends_s:
        await run_cell(target, described, cell, *size, "empty")
    return named(await run_cell(target, described, cell, *size, "empty"), cell.name)


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
