"""The entry point of the octavo command: the tree of subcommands, and errors as one line with an exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from octavo.errors import OctavoError, Unauthenticated

from octavo_cli.commands import (
    ask,
    bench,
    cache,
    check,
    cluster,
    demo,
    diagnose,
    doctor,
    drain,
    gate,
    ledger,
    profile,
    simulate,
    size,
    top,
    trace,
)
from octavo_cli.exits import exit_code

app = typer.Typer(
    name="octavo",
    help="Octavo serves language models. `octavo up` starts a local cluster, `octavo chat` talks to it.",
    epilog="Exit codes: 0 done, 1 failed, 2 unusable arguments, 3 artifact mismatch, 4 no cluster, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from octavo.rpc.host import service_version

        typer.echo(f"octavo {service_version()}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Octavo serves language models."""


for group in (
    cluster,
    drain,
    ask,
    top,
    ledger,
    trace,
    diagnose,
    profile,
    doctor,
    bench,
    cache,
    check,
    gate,
    simulate,
    size,
    demo,
):
    group.register(app)


def main() -> None:
    """Runs the command line of this process and ends it with the command's exit code."""
    try:
        app(prog_name="octavo")
    except OctavoError as error:
        sys.stdout.flush()
        hint = " (--api-key)" if isinstance(error, Unauthenticated) else ""
        print(f"octavo: {' '.join(str(error).split())}{hint}", file=sys.stderr)
        sys.exit(exit_code(error))
