"""bench: measures, and writes figures in the house's form."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from octavo.figures import Figures, to_json, write_figures
from rich.console import Console
from rich.table import Table

from octavo_cli.commands.bench_engine import PASSED_ON, engine
from octavo_cli.commands.bench_quality import quality
from octavo_cli.exits import FAILED, NoCluster
from octavo_cli.load import LoadPlan, figures_of, run_load
from octavo_cli.locate import gateway_url
from octavo_cli.up import start_detached, stop_cluster

bench_app = typer.Typer(help="Measure; every subcommand writes figures with --json FILE.", no_args_is_help=True)


@bench_app.callback()
def bench() -> None:
    """Measure; every subcommand writes figures with --json FILE."""


@bench_app.command()
def serve(
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Clients at once.")] = 4,
    requests: Annotated[int, typer.Option("--requests", min=1, help="Requests in all.")] = 32,
    prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", min=1)] = 128,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1)] = 64,
    seed: Annotated[int, typer.Option("--seed", help="Of the prompts.")] = 0,
    url: Annotated[str, typer.Option("--url", help="grpc://host:port; absent: the run folder's cluster.")] = "",
    run_dir: Annotated[str, typer.Option("--run-dir", help="Run folder of the cluster.")] = "",
    api_key: Annotated[str, typer.Option("--api-key")] = "",
    json_path: Annotated[str, typer.Option("--json", help="Write the figures to this file; -: standard output.")] = "",
) -> None:
    """A closed loop through the SDK: TTFT, ITL, TPOT, tokens/s. Starts a cluster of its own when none runs."""
    plan = LoadPlan(concurrency, requests, prompt_tokens, max_tokens, seed)
    with _cluster(url, run_dir) as address:
        measured = asyncio.run(run_load(address, plan, api_key))
    figures = figures_of(plan, measured)
    if json_path == "-":
        typer.echo(json.dumps(to_json(figures)))
    else:
        if json_path:
            write_figures(Path(json_path), figures)
        print_figures(figures, Console())
    for failure in measured.failures[:3]:
        typer.echo(f"octavo: a request failed: {failure}", err=True)
    if measured.failures:
        raise typer.Exit(FAILED)


@contextlib.contextmanager
def _cluster(url: str, run_dir: str) -> Iterator[str]:
    """The address to measure: the one named, the one that runs, or a cluster of its own for as long as it takes."""
    try:
        address = gateway_url(url, run_dir)
    except NoCluster:
        if run_dir:
            raise
        address = ""
    if address:
        yield address
        return
    print("octavo: no cluster runs; starting one for this measurement", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="octavo-bench-", ignore_cleanup_errors=True) as folder:
        flags = ["--deployment.run_dir", folder]
        flags += ["--gateway.grpc_listen", "127.0.0.1:0", "--gateway.http_listen", "127.0.0.1:0"]
        try:
            yield start_detached(flags, 1, 600.0, Console(stderr=True)).urls["grpc"]
        finally:
            with contextlib.suppress(NoCluster):
                stop_cluster(Path(folder))


def print_figures(figures: Figures, console: Console) -> None:
    """A table for people, drawn from the form."""
    table = Table("name", "value", "unit", "n", "quartiles", title=figures.benchmark, title_justify="left")
    for item in figures.results:
        quartiles = f"{item.spread[0]:.4g} - {item.spread[1]:.4g}" if item.spread else ""
        table.add_row(item.name, f"{item.value:.4g}", item.unit, str(item.n), quartiles)
    console.print(table)


def register(app: typer.Typer) -> None:
    """Adds the group."""
    bench_app.command("engine", context_settings=PASSED_ON)(engine)
    bench_app.command("quality", context_settings=PASSED_ON)(quality)
    app.add_typer(bench_app, name="bench")
