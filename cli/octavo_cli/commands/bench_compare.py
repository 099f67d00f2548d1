"""bench compare and bench trace: files about load, no server needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from octavo.figures import Figures, read_figures
from rich.console import Console

from octavo_cli.bench.arrivals import OpenLoop
from octavo_cli.bench.compare import Comparison, Difference, Unlike, differences
from octavo_cli.bench.compare import compare as compare_figures
from octavo_cli.bench.report import print_comparison, print_unlike
from octavo_cli.bench.trace_writer import TraceShape, statistics_of, write_trace
from octavo_cli.bench.work import BadPlan
from octavo_cli.commands.bench import tell
from octavo_cli.outputs import check_output, write_output


def compare(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="Figures to compare with.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="Figures to compare.")],
    json_path: Annotated[str, typer.Option("--json", help="Write the comparison to this file; -: stdout.")] = "",
) -> None:
    """Ratios B / A, paired by request, with 95% intervals. Refuses unlike workloads and lists what else differs."""
    check_output("json", json_path)
    one, other = _read(a), _read(b)
    console = Console(width=max(120, Console().width))
    try:
        found = compare_figures(one, other)
    except Unlike as error:
        _write(
            {**asdict(Comparison((), tuple(differences(one, other)))), "warning": str(error)}, error.fields, json_path
        )
        if json_path != "-":
            print_unlike(error.fields, console)
        raise
    _write({**asdict(found), "warning": found.warning}, (), json_path)
    if json_path != "-":
        print_comparison(found, console)


def _write(form: dict[str, Any], unlike: Sequence[Difference], path: str) -> None:
    """The comparison as JSON, where it was asked for; `unlike` has the fields for whose sake there are no ratios."""
    form["unlike"] = [asdict(item) for item in unlike]
    if path:
        write_output(path, json.dumps(form, indent=None if path == "-" else 1) + "\n")


def _read(path: Path) -> Figures:
    if not path.is_file():
        raise BadPlan(f"{path}: no such file; `octavo bench serve --json {path}` writes one", field="path")
    return read_figures(path)


def trace(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where the trace goes, in Mooncake's form.")],
    requests: Annotated[int, typer.Option("--requests", help="How many lines.")] = 1000,
    input_mean: Annotated[float, typer.Option("--input-mean", help="Tokens.")] = 8192.0,
    input_spread: Annotated[float, typer.Option("--input-spread", help="Deviation over mean.")] = 1.0,
    output_mean: Annotated[float, typer.Option("--output-mean", help="Tokens.")] = 256.0,
    output_spread: Annotated[float, typer.Option("--output-spread", help="Deviation over mean.")] = 1.0,
    hit_share: Annotated[float, typer.Option("--hit-share", help="Blocks that an endless cache would find.")] = 0.5,
    families: Annotated[int, typer.Option("--families", help="Different prefixes to share.")] = 16,
    arrivals: Annotated[str, typer.Option("--arrivals", help="poisson, gamma or constant.")] = "poisson",
    rate: Annotated[float, typer.Option("--rate", help="Requests per second.")] = 1.0,
    burstiness: Annotated[float, typer.Option("--burstiness", help="gamma: deviation over mean.")] = 2.0,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same trace.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what the trace holds as JSON.")] = False,
) -> None:
    """Write a trace with given lengths, arrivals and prefixes. Tells what it really holds."""
    check_output("file", str(path), stdout=False)
    loop = OpenLoop(arrivals, rate, burstiness=burstiness)
    shape = TraceShape(requests, input_mean, input_spread, output_mean, output_spread, hit_share, families, loop, seed)
    lines = list(write_trace(shape))
    path.write_text("".join(lines), encoding="utf-8")
    found = statistics_of(iter(lines))
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    tell(
        f"{path}: {found.requests} requests in {found.duration_s:.0f} s, input {found.input_mean:.0f} and output"
        f" {found.output_mean:.0f} tokens on average, {found.hit_share:.1%} of the blocks hit"
    )


def register(group: typer.Typer) -> None:
    """Adds the commands to the group."""
    group.command()(compare)
    group.command()(trace)
