"""bench cache: what each tier gives, as time to first token and as restore rates beside their floors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from octavo.figures import Figures

from octavo_cli.bench.namespaces import measure_namespaces, namespace_counts
from octavo_cli.bench.traces import read_trace
from octavo_cli.bench.work import check_number
from octavo_cli.bench.workloads import Shape, make_workload
from octavo_cli.cache_bench.bench import PARTS, CachePlan, check_parts, measure_cache
from octavo_cli.cache_bench.targets import target_lines
from octavo_cli.commands.bench import show_figures, tell
from octavo_cli.outputs import check_output
from octavo_cli.pass_through import PASS_THROUGH, PassThrough


def cache(
    context: typer.Context,
    parts: Annotated[str, typer.Option("--parts", help=f"Comma-separated, of {', '.join(PARTS)}.")] = ",".join(PARTS),
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Samples per row; at least 6 for times to first token.")
    ] = 8,
    seed: Annotated[int, typer.Option("--seed", help="Of the prompts.")] = 1,
    namespaces: Annotated[
        str, typer.Option("--namespaces", help="Instead: hit tokens lost to isolation, in the simulator; as 1,4,16.")
    ] = "",
    trace: Annotated[
        str, typer.Option("--trace", help="With --namespaces: a trace file; absent: documents that sessions share.")
    ] = "",
    requests: Annotated[int, typer.Option("--requests", min=1, help="With --namespaces: of the trace.")] = 400,
    rate: Annotated[float, typer.Option("--rate", help="With --namespaces: sessions per second.")] = 2.0,
    json_path: Annotated[str, typer.Option("--json", help="Write the figures to this file; -: standard output.")] = "",
) -> None:
    """Measure what a hit takes by where the prefix lies. Restore rates of the tiers beside their floors too. Starts its own clusters; takes settings as flags."""
    check_output("json", json_path)
    if namespaces:
        show_figures(_isolation(namespaces, trace, requests, rate, seed), json_path)
        return
    plan = CachePlan(check_parts([name for name in parts.split(",") if name]), rounds, seed)
    figures, notes = measure_cache(plan, list(context.args), tell)
    show_figures(figures, json_path)
    if json_path != "-":
        typer.echo("\n".join(["", *target_lines(figures.results)]))
    for note in notes:
        tell(note)


def _isolation(namespaces: str, trace: str, requests: int, rate: float, seed: int) -> Figures:
    counts = namespace_counts(namespaces)
    check_number("rate", rate, above=True)
    shape = Shape(requests, prompt_tokens=64, max_tokens=16, prefix_tokens=512, prefixes=8, seed=seed)
    load = read_trace(Path(trace), "", requests, 16) if trace else make_workload("shared-prefix", shape)
    return measure_namespaces(load, counts, rate)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("cache", cls=PassThrough, context_settings=PASS_THROUGH)(cache)
