"""bench cache: what each tier gives, as time to first token and as restore rates beside their floors."""

from __future__ import annotations

from typing import Annotated

import typer

from octavo_cli.cache_bench.bench import PARTS, CachePlan, check_parts, measure_cache
from octavo_cli.commands.bench import show_figures, tell
from octavo_cli.outputs import check_output

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def cache(
    context: typer.Context,
    parts: Annotated[str, typer.Option("--parts", help=f"Comma-separated, of {', '.join(PARTS)}.")] = ",".join(PARTS),
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Samples per row; at least 6 for times to first token.")
    ] = 8,
    seed: Annotated[int, typer.Option("--seed", help="Of the prompts.")] = 1,
    json_path: Annotated[str, typer.Option("--json", help="Write the figures to this file; -: standard output.")] = "",
) -> None:
    """Time to first token by where the prefix lies, and restore rates of the tiers beside their floors. Starts its own clusters; takes settings as flags."""
    check_output("json", json_path)
    plan = CachePlan(check_parts([name for name in parts.split(",") if name]), rounds, seed)
    figures, notes = measure_cache(plan, list(context.args), tell)
    show_figures(figures, json_path)
    for note in notes:
        tell(note)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("cache", context_settings=PASSED_ON)(cache)
