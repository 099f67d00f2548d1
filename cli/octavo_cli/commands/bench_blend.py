"""bench blend: agreement of blended chunks with a full prefill."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from octavo.rpc.settings import load_settings

from octavo_cli.bench.work import BadPlan
from octavo_cli.engine_bench.blend import blend_ratios, measure_blend
from octavo_cli.outputs import check_output
from octavo_cli.pass_through import PASS_THROUGH, PassThrough


def blend(
    context: typer.Context,
    ratios: Annotated[
        str, typer.Option("--ratios", help="Shares of the reused tokens that are computed again.")
    ] = "0,0.05,0.15,0.3,1",
    cases: Annotated[int, typer.Option("--cases", min=1, help="Prompts.")] = 8,
    chunks: Annotated[str, typer.Option("--chunks", help="COUNTxTOKENS of each prompt.")] = "4x64",
    steps: Annotated[int, typer.Option("--steps", min=1, help="Tokens of the answer that are compared.")] = 16,
    seed: Annotated[int, typer.Option("--seed", help="Of the choice of passages.")] = 1,
    json_path: Annotated[str, typer.Option("--json", help="Write the figures to this file; -: standard output.")] = "",
) -> None:
    """Compare reused chunks with computing everything. Chunks of the shipped text, at other positions. Takes settings as flags."""
    from octavo_cli.commands.bench import show_figures

    check_output("json", json_path)
    count, _, size = chunks.partition("x")
    if not (count.isdigit() and size.isdigit()):
        raise BadPlan(f"--chunks: {chunks!r} must be COUNTxTOKENS, as 4x64", field="chunks")
    settings = load_settings(context.args, os.environ)
    show_figures(measure_blend(settings, blend_ratios(ratios), cases, int(count), int(size), steps, seed), json_path)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("blend", cls=PassThrough, context_settings=PASS_THROUGH)(blend)
