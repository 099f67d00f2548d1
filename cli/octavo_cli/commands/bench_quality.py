"""bench quality: perplexity of every precision on the shipped text, against the float32 oracle."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from octavo.rpc.settings import load_settings

from octavo_cli.commands.bench_engine import show
from octavo_cli.engine_bench.codecs import CODECS, measure_codecs
from octavo_cli.engine_bench.quality import FORMS, measure_quality


def quality(
    context: typer.Context,
    forms: Annotated[str, typer.Option("--forms", help="Comma-separated; absent: all.")] = ",".join(FORMS),
    codecs: Annotated[
        str,
        typer.Option(
            "--codecs", help=f"Instead of the precisions: codecs of the KV store; all, or of {', '.join(CODECS)}."
        ),
    ] = "",
    tokens: Annotated[int, typer.Option("--tokens", min=0, help="Of the text; 0: all.")] = 0,
    allow_beyond: Annotated[
        bool, typer.Option("--allow-beyond", help="Exit with 0 also where a form is beyond its bound.")
    ] = False,
    json_path: Annotated[str, typer.Option("--json", help="Write the figures to this file; -: standard output.")] = "",
) -> None:
    """Measure how far each precision agrees with float32. Perplexity and top-1 agreement of bf16, int8, int4 and an int8 cache with the oracle. Takes settings as flags."""
    settings = load_settings(context.args, os.environ)
    if codecs:
        chosen = list(CODECS) if codecs == "all" else _names(codecs)
        figures, notes = measure_codecs(settings, chosen, tokens)
    else:
        figures, notes = measure_quality(settings, _names(forms), tokens)
    show(figures, notes, json_path)
    beyond = [note.partition(":")[0] for note in notes if " BEYOND " in note]
    if beyond and not allow_beyond:
        typer.echo(
            f"octavo: beyond its bound: {', '.join(beyond)}; do not serve with it, or say --allow-beyond", err=True
        )
        raise typer.Exit(1)


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]
