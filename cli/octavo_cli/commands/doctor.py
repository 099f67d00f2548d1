"""doctor, and manifest fingerprint: what is here, before anything runs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Annotated

import typer
from octavo.rpc.settings import load_settings

from octavo_cli.commands.cluster import ManifestFile, Model, service_flags
from octavo_cli.doctor import Check, compile_kernels, examine, kernel_rows
from octavo_cli.exits import FAILED
from octavo_cli.pass_through import PASS_THROUGH, PassThrough

manifest_app = typer.Typer(help="The serving manifest.", no_args_is_help=True)
MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def doctor(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Which row of each operation the worker would take.")
    ] = False,
    compile_for: Annotated[
        str,
        typer.Option(
            "--compile",
            metavar="sm_NN",
            help="With --kernels: compile every Triton kernel for this target, GPU or not; --json FILE keeps the rows.",
        ),
    ] = "",
    model: Model = "",
    manifest: ManifestFile = "",
) -> None:
    """Check what this machine has and lacks. Torch, triton, compiler, kernels, GPU, model files, ports, manifest, disk. Exit code 1 when something fails."""
    if kernels and compile_for:
        words = ["--target", compile_for, *(["--json"] if as_json else []), *context.args]
        raise typer.Exit(compile_kernels(words))
    if kernels:
        rows = kernel_rows()
        typer.echo(json.dumps(rows) if as_json else "\n".join(rows))
        return
    checks = examine(service_flags(context.args, model, manifest))
    if as_json:
        typer.echo(json.dumps({"ok": not _failed(checks), "checks": [asdict(check) for check in checks]}))
    else:
        for check in checks:
            typer.echo(f"{MARKS[check.verdict]}  {check.name:<26} {check.found}")
            if check.advice:
                typer.echo(f"      {'':<26} -> {check.advice}")
    if _failed(checks):
        raise typer.Exit(FAILED)


def _failed(checks: list[Check]) -> bool:
    return any(check.verdict == "fail" for check in checks)


@manifest_app.callback()
def manifest_root() -> None:
    """The serving manifest."""


@manifest_app.command(cls=PassThrough, context_settings=PASS_THROUGH)
def fingerprint(
    context: typer.Context,
    model: Model = "",
    manifest: ManifestFile = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the hashes of a model's files, for a manifest. Of weights, tokenizer and chat template, as YAML."""
    from octavo import artifacts

    settings = load_settings(service_flags(context.args, model, manifest), os.environ)
    ref = settings.manifest.model.ref
    files = artifacts.resolve_model(ref)
    values = {
        "ref": ref,
        "weights_blake3": artifacts.weights_hash(files),
        "tokenizer_blake3": artifacts.tokenizer_hash(files),
        "chat_template_blake3": artifacts.chat_template_hash(files),
    }
    if as_json:
        typer.echo(json.dumps(values))
        return
    typer.echo("model:")
    for key, value in values.items():
        typer.echo(f"  {key}: {json.dumps(value)}")


def register(app: typer.Typer) -> None:
    """Adds the subcommands of this module."""
    app.command(cls=PassThrough, context_settings=PASS_THROUGH)(doctor)
    app.add_typer(manifest_app, name="manifest")
