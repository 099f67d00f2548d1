"""trace: one request's spans as a waterfall."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from octavo.manifest import ManifestError
from rich.console import Console

from octavo_cli.locate import run_dir_of
from octavo_cli.spans import find_trace, read_spans
from octavo_cli.waterfall import draw


def trace(
    wanted: Annotated[str, typer.Argument(metavar="[ID]", help="Trace id or request id; a beginning is enough.")] = "",
    last: Annotated[bool, typer.Option("--last", help="The latest request (as without an ID).")] = False,
    run_dir: Annotated[str, typer.Option("--run-dir", help="Run folder of the cluster.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the spans as JSON.")] = False,
) -> None:
    """Draw a request's trace from the trace files of the run folder; the cluster need not run."""
    if wanted and last:
        raise ManifestError("--last: give an ID or --last, not both", field="last")
    found = find_trace(read_spans(run_dir_of(run_dir)), wanted)
    if as_json:
        typer.echo(json.dumps([asdict(span) for span in sorted(found, key=lambda span: span.start_ns)]))
    else:
        draw(found, Console())


def register(app: typer.Typer) -> None:
    """Adds the subcommand."""
    app.command()(trace)
