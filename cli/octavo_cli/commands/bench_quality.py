"""bench quality: perplexity of every precision on the shipped text, against the float32 oracle."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from octavo.rpc.settings import load_settings

from octavo_cli.commands.bench_engine import show
from octavo_cli.engine_bench.quality import FORMS, measure_quality


def quality(
    context: typer.Context,
    forms: Annotated[str, typer.Option("--forms", help="Comma-separated; absent: all.")] = ",".join(FORMS),
    tokens: Annotated[int, typer.Option("--tokens", min=0, help="Of the text; 0: all.")] = 0,
    json_path: Annotated[str, typer.Option("--json", help="Write the figures to this file; -: standard output.")] = "",
) -> None:
    """Perplexity and top-1 agreement of bf16, int8, int4 and an int8 cache with the float32 oracle. Takes settings as flags."""
    wanted = [name.strip() for name in forms.split(",") if name.strip()]
    figures, notes = measure_quality(load_settings(context.args, os.environ), wanted, tokens)
    show(figures, notes, json_path)
