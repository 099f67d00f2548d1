"""profile: what a live worker's next steps spend their time on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from octavo.manifest import ManifestError
from rich.console import Console

from octavo_cli.locate import run_dir_of
from octavo_cli.profile import check_steps, check_writable, plain, record, table_of, worker_address
from octavo_cli.state import running_state


def profile(
    worker: Annotated[str, typer.Argument(help="Name of the worker, as `octavo status` lists it, or its address.")],
    steps: Annotated[int, typer.Option("--steps", help="Steps to record, 1 to 100.")] = 20,
    out: Annotated[Path, typer.Option("--out", help="Trace file, for chrome://tracing or ui.perfetto.dev.")] = Path(
        "trace.json"
    ),
    limit_s: Annotated[float, typer.Option("--limit-s", help="How long to wait for so many steps, seconds.")] = 30.0,
    run_dir: Annotated[
        str, typer.Option("--run-dir", help="Run folder of the cluster; absent: deployment.run_dir.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Record the next steps of a live worker. Operations and kernels with their times and bytes, and a trace file."""
    check_steps(steps)
    if not limit_s > 0:
        raise ManifestError(f"--limit-s: {limit_s:g} must be positive", field="limit_s")
    check_writable(out)
    address = worker_address(worker, running_state(run_dir_of(run_dir)).services)
    idle = f"octavo: {worker} is idle; its next {steps} steps are recorded: send a request within {limit_s:g} s"
    found = asyncio.run(record(address, steps, limit_s, lambda: typer.echo(idle, err=True)))
    out.write_bytes(found.trace)
    if as_json:
        typer.echo(json.dumps({"trace": str(out), "bytes": len(found.trace), "summary": plain(found.summary)}))
        return
    Console().print(table_of(found.summary))
    typer.echo(f"{out}: {len(found.trace) / 1e6:.1f} MB")


def register(app: typer.Typer) -> None:
    """Adds the subcommand."""
    app.command()(profile)
