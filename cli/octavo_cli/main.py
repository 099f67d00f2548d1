"""The entry point of the octavo command: the tree of subcommands, and errors as one line with an exit code."""

from __future__ import annotations

import io
import os
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
from octavo_cli.exits import FAILED, INTERRUPTED, OK, exit_code

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
    if sys.stdout is None:  # closed by who called
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a bar that a terminal has no letter for ends no command
    try:
        _run()
    except KeyboardInterrupt:  # before a command began
        sys.exit(INTERRUPTED)
    except OSError as error:  # mostly an output that takes no more: a full disk, a stream that was closed
        if not isinstance(error, BrokenPipeError):
            print(f"octavo: {error.filename or 'standard output'}: {error.strerror or error}", file=sys.stderr)
        _discard_output()
        sys.exit(FAILED)


def _run() -> None:
    code: int | str | None = OK
    try:
        app(prog_name="octavo")
    except SystemExit as ended:
        code = ended.code
    except OctavoError as error:
        hint = " (--api-key)" if isinstance(error, Unauthenticated) else ""
        code = exit_code(error)
        sys.stdout.flush()
        print(f"octavo: {' '.join(str(error).split())}{hint}", file=sys.stderr)
    sys.stdout.flush()
    sys.exit(code)


def _discard_output() -> None:
    """What was not written is not tried again when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
