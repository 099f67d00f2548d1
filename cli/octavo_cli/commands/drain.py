"""drain: one worker leaves in order."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Annotated

import typer
from octavo.errors import InvalidRequest

from octavo_cli.drain_link import follow_drain, progress_line
from octavo_cli.exits import FAILED, OK
from octavo_cli.locate import scheduler_address


def drain(
    worker: Annotated[str, typer.Argument(help="Name of the worker, as `octavo top` shows it.")],
    deadline_s: Annotated[
        float, typer.Option("--deadline-s", help="What still runs after this goes on elsewhere.")
    ] = 60.0,
    force: Annotated[bool, typer.Option("--force", help="Also the last worker that takes requests.")] = False,
    scheduler: Annotated[
        str, typer.Option("--scheduler", help="host:port of a scheduler; absent: the run folder's.")
    ] = "",
    run_dir: Annotated[
        str, typer.Option("--run-dir", help="Run folder of the cluster; absent: deployment.run_dir.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print how it ended as JSON.")] = False,
) -> None:
    """Take a worker out in order. No new work, what runs ends or moves at the deadline, then it stops. Exit code 0 drained, 1 lost."""
    if not 0 <= deadline_s <= 86_400:
        raise InvalidRequest(f"--deadline-s: {deadline_s:g} must lie in [0, 86400]", field="deadline-s")
    address = scheduler_address(scheduler, run_dir)
    raise typer.Exit(asyncio.run(_drain(address, worker, deadline_s, force, as_json)))


async def _drain(address: str, worker: str, deadline_s: float, force: bool, as_json: bool) -> int:
    began_s, said, state = time.monotonic(), "", ""
    async for progress in follow_drain(address, worker, deadline_s, force):
        seconds, state = time.monotonic() - began_s, progress.state
        line = progress_line(worker, progress, seconds)
        if as_json and state != "draining":
            counts = {"finished": progress.finished, "handed_over": progress.handed_over}
            typer.echo(json.dumps({"worker": worker, "state": state, "seconds": round(seconds, 3), **counts}))
        elif not as_json and line != said:
            typer.echo(line)
        said = line
    return OK if state == "drained" else FAILED


def register(app: typer.Typer) -> None:
    """Adds the subcommand."""
    app.command()(drain)
