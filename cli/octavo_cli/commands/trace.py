"""trace: one request's spans as a waterfall, a table of many, or a file for another tool."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from octavo.manifest import ManifestError
from rich.console import Console
from rich.table import Column, Table

from octavo_cli.commands.bench import tell
from octavo_cli.jaeger import jaeger_json
from octavo_cli.locate import run_folder
from octavo_cli.outputs import check_outputs, write_output
from octavo_cli.requests_table import COLUMNS, line, requests_of, row, slowest
from octavo_cli.spans import NoTrace, Span, TraceTail, find_trace, read_spans
from octavo_cli.trace_page import page
from octavo_cli.waterfall import draw

FOLLOW_POLL_S = 0.5
TABLE_WIDTH = 150
"""Columns of a table that no terminal shows."""
NARROW = 125
"""A terminal of fewer columns has no room for every cell."""


def trace(
    wanted: Annotated[str, typer.Argument(metavar="ID", help="Trace id or request id; a beginning is enough.")] = "",
    last: Annotated[bool, typer.Option("--last", help="The latest request (as without an ID).")] = False,
    slowest_count: Annotated[
        int | None, typer.Option("--slowest", min=1, metavar="N", help="A table of the N slowest first tokens.")
    ] = None,
    tenant: Annotated[str, typer.Option("--tenant", help="Only requests of this tenant.")] = "",
    follow: Annotated[bool, typer.Option("--follow", help="A line per request as it ends, until Ctrl-C.")] = False,
    export: Annotated[
        str, typer.Option("--export", metavar="FILE", help="Write JSON that Jaeger's UI uploads; -: stdout.")
    ] = "",
    html: Annotated[str, typer.Option("--html", metavar="FILE", help="Write one self-contained page; -: stdout.")] = "",
    run_dir: Annotated[
        str, typer.Option("--run-dir", help="Run folder of the cluster; absent: deployment.run_dir.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the spans as JSON.")] = False,
) -> None:
    """Draw where a request's time went. From the trace files of the run folder; the cluster need not run."""
    _check(wanted, last, slowest_count, follow, export, html)
    check_outputs(export=export, html=html)
    folder = run_folder(run_dir)
    if follow:
        _follow(folder, tenant, as_json)
        return
    spans = read_spans(folder, tell)
    if slowest_count:
        _table(spans, slowest_count, tenant, export, as_json)
        return
    if tenant:
        ids = {span.trace_id for span in requests_of(spans, tenant)}
        if not ids:
            raise NoTrace(f"no request of tenant {tenant!r} here; `octavo trace --slowest 10` lists those there are")
        spans = [span for span in spans if span.trace_id in ids]
    found = find_trace(spans, wanted)
    if export:
        write_output(export, json.dumps(jaeger_json(found)))
    if html:
        write_output(html, page(found))
    if as_json:
        typer.echo(json.dumps([asdict(span) for span in sorted(found, key=lambda span: span.start_ns)]))
    elif not (export or html):
        draw(found, Console())


def _check(wanted: str, last: bool, slowest_count: int | None, follow: bool, export: str, html: str) -> None:
    if wanted and last:
        raise ManifestError("--last: give an ID or --last, not both", field="last")
    if slowest_count and (wanted or last or html):
        raise ManifestError("--slowest: lists requests; leave out the ID, --last and --html", field="slowest")
    if follow and (wanted or last or slowest_count or export or html):
        raise ManifestError("--follow: takes only --tenant, --json and --run-dir beside it", field="follow")


def _table(spans: list[Span], count: int, tenant: str, export: str, as_json: bool) -> None:
    listed = slowest(requests_of(spans, tenant), count)
    if not listed:
        raise NoTrace("no request here yet" + (f" of tenant {tenant!r}" if tenant else ""))
    ids = {span.trace_id for span in listed}
    if export:
        write_output(export, json.dumps(jaeger_json(span for span in spans if span.trace_id in ids)))
    if as_json:
        typer.echo(json.dumps([asdict(span) for span in listed]))
        return
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    console.print(requests_table(listed, console.width))


def requests_table(listed: Sequence[Span], width: int) -> Table:
    """One row each. Below NARROW columns it leaves out trace and tenant; ids alone give way: a beginning finds them."""
    shown = [name for name in COLUMNS if width >= NARROW or name not in ("trace", "tenant")]
    table = Table(*(Column(name, no_wrap=name not in ("request", "trace"), overflow="ellipsis") for name in shown))
    for span in listed:
        cells = dict(zip(COLUMNS, row(span), strict=True))
        table.add_row(*(cells[name] for name in shown))
    return table


def _follow(folder: Path, tenant: str, as_json: bool) -> None:
    """Polls the files; what ended before the start is not shown."""
    tail = TraceTail(folder)
    tail.skip()
    while True:
        for span in sorted(requests_of(tail.read(), tenant), key=lambda span: span.end_ns):
            typer.echo(json.dumps(asdict(span)) if as_json else line(span))
        time.sleep(FOLLOW_POLL_S)


def register(app: typer.Typer) -> None:
    """Adds the subcommand."""
    app.command()(trace)
