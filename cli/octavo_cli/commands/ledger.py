"""ledger: what each technique of the scheduler saved and cost."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console

from octavo_cli.ledger_link import ask_ledger
from octavo_cli.ledger_view import draw_ledger
from octavo_cli.locate import scheduler_address

PIPE_WIDTH = 160


def ledger(
    technique: Annotated[
        str, typer.Option("--technique", help="Only this one, such as prefix_cache or tier_load; absent: all.")
    ] = "",
    tenant: Annotated[str, typer.Option("--tenant", help="Only what was booked for this tenant; absent: all.")] = "",
    scheduler: Annotated[
        str, typer.Option("--scheduler", help="host:port of a scheduler; absent: the run folder's.")
    ] = "",
    run_dir: Annotated[
        str, typer.Option("--run-dir", help="Run folder of the cluster; absent: deployment.run_dir.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, every row by prompt length too.")] = False,
) -> None:
    """Show what caching, loads, swaps and pauses saved and cost. Per technique, per tenant, against their trials."""
    content = ask_ledger(scheduler_address(scheduler, run_dir), technique, tenant)
    if as_json:
        typer.echo(json.dumps(content))
    else:
        Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(draw_ledger(content))


def register(app: typer.Typer) -> None:
    """Adds the subcommand."""
    app.command()(ledger)
