"""bench engine: the bare engine's rates against the machine's floor, peers in turn, and the way through the services."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from octavo.figures import Figures, to_json, write_figures
from octavo.rpc.settings import load_settings
from rich.console import Console

from octavo_cli.bench.report import print_figures
from octavo_cli.engine_bench.engine import ROWS, EnginePlan, check_rows, check_services, measure_engine
from octavo_cli.engine_bench.peers import parse_peers
from octavo_cli.engine_bench.wanted import verdict_table, verdicts


def engine(
    context: typer.Context,
    rows: Annotated[str, typer.Option("--rows", help="Comma-separated; absent: all.")] = ",".join(ROWS),
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Samples per row.")] = 5,
    steps: Annotated[int, typer.Option("--steps", min=2, help="Decode steps per sample.")] = 24,
    peers: Annotated[bool, typer.Option("--peers/--no-peers", help="llama.cpp in turn with ours, when found.")] = True,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer",
            metavar="NAME=COMMAND",
            help="Several times: another engine in turn with ours; what it must answer: bench/README.md.",
        ),
    ] = None,
    services: Annotated[
        str,
        typer.Option("--services", help="Weights to measure through the services, comma-separated; none: leave out."),
    ] = "bf16,int8",
    compare_calls: Annotated[
        bool, typer.Option("--compare-calls", help="Through the services with a stream per request too, in turn.")
    ] = False,
    json_path: Annotated[str, typer.Option("--json", help="Write the figures to this file; -: standard output.")] = "",
) -> None:
    """Measure prefill and decode of the bare engine. In ms per step and % of the floor; peers and services beside it, and which bounds are met.

    Takes settings as flags."""
    plan = EnginePlan(
        check_rows(rows.split(",")),
        rounds,
        steps,
        peers,
        parse_peers(peer or []),
        check_services(services),
        compare_calls,
    )
    figures, notes = measure_engine(load_settings(context.args, os.environ), plan)
    show(figures, notes, json_path)
    if json_path != "-" and (found := verdicts(figures.results)):
        Console().print(verdict_table(found))


def show(figures: Figures, notes: list[str], json_path: str) -> None:
    """The table and its notes, and the form in a file; the form alone on standard output for `-`."""
    if json_path == "-":
        typer.echo(json.dumps(to_json(figures)))
        return
    if json_path:
        write_figures(Path(json_path), figures)
    print_figures(figures, Console())
    for note in notes:
        typer.echo(f"note: {note}")
    for key, value in figures.config.items():
        typer.echo(f"{key}: {value}")
