"""bench: measures, and writes figures in the house's form."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer
from octavo.figures import Figures, to_json, write_figures
from rich.console import Console

from octavo_cli.bench.report import print_figures
from octavo_cli.commands.bench_engine import engine
from octavo_cli.commands.bench_quality import quality
from octavo_cli.exits import NoCluster
from octavo_cli.locate import server_url
from octavo_cli.own_cluster import own_cluster
from octavo_cli.pass_through import PASS_THROUGH, PassThrough

bench_app = typer.Typer(help="Measure; every subcommand writes figures with --json FILE.", no_args_is_help=True)


@bench_app.callback()
def bench() -> None:
    """Measure; every subcommand writes figures with --json FILE."""


@contextlib.contextmanager
def measured_cluster(url: str, run_dir: str) -> Iterator[str]:
    """The address to measure: the one named, the one that runs, or a cluster of its own for as long as it takes."""
    try:
        address = server_url(url, run_dir)
    except NoCluster:
        if run_dir:
            raise
        address = ""
    if address:
        yield address
        return
    print("octavo: no cluster runs; starting one for this measurement", file=sys.stderr)
    with fresh_cluster() as address:
        yield address


@contextlib.contextmanager
def fresh_cluster(flags: Sequence[str] = ()) -> Iterator[str]:
    """The gRPC address of a cluster of its own with these settings."""
    with own_cluster(flags, console=Console(stderr=True)) as cluster:
        yield cluster.state.urls["grpc"]


def show_figures(figures: Figures, json_path: str) -> None:
    """The table, and the form in a file; the form alone on standard output for `-`."""
    if json_path == "-":
        typer.echo(json.dumps(to_json(figures)))
        return
    if json_path:
        write_figures(Path(json_path), figures)
    print_figures(figures, Console())


def tell(line: str) -> None:
    """Progress, on standard error."""
    print(f"octavo: {line}", file=sys.stderr)


def register(app: typer.Typer) -> None:
    """Adds the group."""
    bench_app.command("engine", cls=PassThrough, context_settings=PASS_THROUGH)(engine)
    bench_app.command("quality", cls=PassThrough, context_settings=PASS_THROUGH)(quality)
    from octavo_cli.commands import bench_blend, bench_cache, bench_compare, bench_matrix, bench_serve

    for module in (bench_blend, bench_serve, bench_compare, bench_matrix, bench_cache):
        module.register(bench_app)
    app.add_typer(bench_app, name="bench")
