"""top: the live view in a terminal."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from octavo_cli.live_feed import moment, moments
from octavo_cli.locate import http_url
from octavo_cli.top_view import draw

PIPE_WIDTH = 160
"""Columns where nobody's terminal says how many there are."""


def top(
    once: Annotated[bool, typer.Option("--once", help="One look, as without a terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One look as JSON.")] = False,
    url: Annotated[str, typer.Option("--url", help="http://host:port of a gateway; absent: the run folder's.")] = "",
    run_dir: Annotated[
        str, typer.Option("--run-dir", help="Run folder of the cluster; absent: deployment.run_dir.")
    ] = "",
    api_key: Annotated[str, typer.Option("--api-key", help="Key of your tenant; an admin's sees everything.")] = "",
) -> None:
    """Watch workers, blocks, requests and latencies. Ctrl-C ends it."""
    address = http_url(url, run_dir)
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    if as_json:
        typer.echo(json.dumps(moment(address, api_key)))
    elif once or not console.is_terminal:
        console.print(draw(moment(address, api_key), console.width))
    else:
        with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as screen:
            for item in moments(address, api_key):
                screen.update(draw(item, console.width), refresh=True)


def register(app: typer.Typer) -> None:
    """Adds the subcommand."""
    app.command()(top)
