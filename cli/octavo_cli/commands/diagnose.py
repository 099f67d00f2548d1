"""diagnose: which phase makes requests slow, what bounds it, and what to compare first."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from octavo.figures import read_figures
from octavo.manifest import ManifestError
from rich.console import Console
from rich.table import Table

from octavo_cli.commands.bench import tell
from octavo_cli.diagnosis import Finding, Targets, diagnose, facts_of, facts_of_figures
from octavo_cli.locate import run_folder
from octavo_cli.spans import read_spans

WIDTH = 132
"""Columns where no terminal shows them."""
UNITS_S = {"s": 1, "m": 60, "h": 3600}


def diagnose_command(
    bench: Annotated[str, typer.Argument(metavar="BENCH.json", help="Figures of `octavo bench serve --json`.")] = "",
    last: Annotated[str, typer.Option("--last", metavar="10m", help="Requests that ended within this time.")] = "10m",
    ttft_ms: Annotated[float, typer.Option("--ttft-ms", min=0.001, help="Target of the first token.")] = 1000.0,
    itl_ms: Annotated[float, typer.Option("--itl-ms", min=0.001, help="Target of a gap between tokens.")] = 200.0,
    run_dir: Annotated[
        str, typer.Option("--run-dir", help="Run folder of the cluster; absent: deployment.run_dir.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Name the phase that makes requests slow. What bounds it, the first comparison to make and the cost to watch, too."""
    if bench:
        facts = facts_of_figures(read_figures(Path(bench)))
    else:
        since_ns = time.time_ns() - int(seconds_of(last) * 1e9)
        facts = facts_of(read_spans(run_folder(run_dir), tell), since_ns)
    findings = diagnose(facts, Targets(ttft_ms, itl_ms))
    if as_json:
        typer.echo(json.dumps({"requests": facts.requests, "findings": [asdict(item) for item in findings]}))
    else:
        _print(findings, facts.requests)


def seconds_of(text: str) -> float:
    """`90s`, `10m`, `2h` in seconds. Raises ManifestError naming the flag."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if not match:
        raise ManifestError(f"--last: {text!r} is no duration; write 90s, 10m or 2h", field="last")
    return float(match.group(1)) * UNITS_S[match.group(2)]


def _print(findings: list[Finding], requests: int) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    table = Table("phase", "bound by", "of target", "evidence", title=f"{requests} requests", title_justify="left")
    for item in findings:
        style = "bold red" if item.over else ""
        table.add_row(item.phase, item.bound, f"{item.score:.0%}", item.evidence, style=style)
    console.print(table)
    if not findings or not findings[0].over:
        console.print("Within the targets; the first row is what takes longest.")
    if findings:
        console.print(f"Compare first: {findings[0].compare}.")
        console.print(f"Cost to watch: {findings[0].cost}.")


def register(app: typer.Typer) -> None:
    """Adds the subcommand."""
    app.command("diagnose")(diagnose_command)
