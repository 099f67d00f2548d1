"""bench matrix: every cell of prompt x output x reuse x sampling x pause, per weight format and state."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer
from octavo.figures import Figures, from_json
from rich.console import Console

from octavo_cli.bench.matrix import Axes
from octavo_cli.bench.matrix_page import matrix_table, print_matrix
from octavo_cli.bench.matrix_run import MatrixRun
from octavo_cli.bench.page import page
from octavo_cli.bench.work import BadPlan, check_number
from octavo_cli.commands.bench import fresh_cluster, measured_cluster, show_figures, tell
from octavo_cli.exits import FAILED
from octavo_cli.outputs import check_outputs, write_output

MAX_AFTER_MIN = 7 * 24 * 60.0
FORMATS = ("bf16=", "int8=--engine.weights int8")


def matrix(
    url: Annotated[
        str, typer.Option("--url", help="grpc://... or http://.../v1; absent: fresh clusters, one per --format.")
    ] = "",
    prompt: Annotated[str, typer.Option("--prompt", help="Prompt lengths, tokens.")] = "128,1024,8192,32768",
    output: Annotated[str, typer.Option("--output", help="Output lengths, tokens.")] = "16,128,512",
    reuse: Annotated[str, typer.Option("--reuse", help="Shares of common prompt.")] = "none,partial,high",
    sampling: Annotated[str, typer.Option("--sampling", help="greedy, top-p.")] = "greedy,top-p",
    pause: Annotated[str, typer.Option("--pause", help="Between a client's requests.")] = "none,short,long",
    variant: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            metavar="NAME=FLAGS",
            help="Several times: a fresh cluster with these settings each; absent: bf16 and 'int8=--engine.weights int8'.",
        ),
    ] = None,
    clients: Annotated[int, typer.Option("--clients", min=1, help="At once, in each cell.")] = 2,
    each: Annotated[
        int, typer.Option("--each", min=1, help="Requests of each client per cell, as far as the budget goes.")
    ] = 3,
    budget_s: Annotated[
        float, typer.Option("--budget-s", help="Seconds for all of it; then the rest is skipped.")
    ] = 600.0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what --json holds of this matrix.")] = False,
    after_min: Annotated[float, typer.Option("--after-min", help="Measure again after so many minutes of load.")] = 0.0,
    run_dir: Annotated[
        str, typer.Option("--run-dir", help="Run folder of a running cluster, which is measured as it is.")
    ] = "",
    api_key: Annotated[str, typer.Option("--api-key", help="Key of your tenant.")] = "",
    json_path: Annotated[str, typer.Option("--json", help="Write the figures to this file; -: stdout.")] = "",
    html_path: Annotated[str, typer.Option("--html", help="Write one page to this file; -: stdout.")] = "",
) -> None:
    """Measure a matrix of cells in each state. What cannot be measured is listed as skipped, with the reason."""
    check_outputs(json=json_path, html=html_path)
    check_number("after-min", after_min, most=MAX_AFTER_MIN)
    axes = Axes(_sizes("prompt", prompt), _sizes("output", output), _words(reuse), _words(sampling), _words(pause))
    check_number("budget-s", budget_s, above=True)
    work = MatrixRun(axes, clients, each, budget_s, after_min, "" if json_path == "-" else json_path, tell)
    if resume:
        work.resume(_before(json_path))
    fresh = bool(variant) or not (url or run_dir)
    formats = _formats(variant or [] if url or run_dir else variant or list(FORMATS))
    left_s = budget_s
    for number, (name, flags) in enumerate(formats.items()):
        with fresh_cluster(flags) if fresh else measured_cluster(url, run_dir) as address:
            began_s = time.monotonic()
            ends_s = began_s + left_s / (len(formats) - number)
            asyncio.run(work.measure(address, api_key, name, ends_s, fresh=fresh))
            left_s = max(0.0, left_s - (time.monotonic() - began_s - after_min * 60.0))
    figures = work.figures()
    if json_path == "-":
        show_figures(figures, json_path)
    else:
        work.save()
        print_matrix(figures, Console())
    notes = [f"skipped {item.name}: {item.why}" for item in work.table.skipped]
    if html_path:
        write_output(html_path, page(figures, {}, notes, matrix_table(figures)))
    for note in notes:
        tell(note)
    if work.failed or any(item.name.startswith("errors/") and item.value for item in figures.results):
        raise typer.Exit(FAILED)


def _before(json_path: str) -> Figures:
    """What a run before this one saved. Raises BadPlan."""
    if json_path in ("", "-"):
        raise BadPlan("--resume: give the file of the earlier run with --json", field="resume")
    try:
        return from_json(json.loads(Path(json_path).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise BadPlan(f"--resume: {json_path} cannot be read ({error}); leave --resume out", field="resume") from error


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
