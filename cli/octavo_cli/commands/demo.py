"""demo: what `make demo` runs."""

from __future__ import annotations

from typing import Annotated

import typer

from octavo_cli.commands.cluster import service_flags
from octavo_cli.demo import QUESTION, run_demo
from octavo_cli.pass_through import PASS_THROUGH, PassThrough
from octavo_cli.plan import MODULES


def demo(
    context: typer.Context,
    question: Annotated[str, typer.Option("--question", help="What to ask.")] = QUESTION,
    as_json: Annotated[bool, typer.Option("--json", help="Print answer and spans as JSON.")] = False,
    model: Annotated[str, typer.Option("--model", help="smollm2, a .gguf file or a Hugging Face folder.")] = "",
    module: Annotated[list[str] | None, typer.Option("--module", hidden=True)] = None,
) -> None:
    """Ask a cluster of its own one question. Starts it, shows the answer and its trace, stops it."""
    modules = MODULES | dict(item.split("=", 1) for item in module or [])
    raise typer.Exit(run_demo(service_flags(context.args, model), modules, question, as_json))


def register(app: typer.Typer) -> None:
    """Adds the subcommand."""
    app.command(cls=PassThrough, context_settings=PASS_THROUGH)(demo)
