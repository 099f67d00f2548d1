"""gate: the release gate of a manifest, run before ready."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from octavo.manifest import ManifestError
from octavo.rpc.settings import load_settings

from octavo_cli.addresses import checked_scheduler
from octavo_cli.check.gate import chosen_checks
from octavo_cli.check.reference import read_reference
from octavo_cli.check.release import REPORT, run_gate
from octavo_cli.commands.check import scheduler_of, show
from octavo_cli.commands.cluster import ManifestFile, Model, RunDir, service_flags
from octavo_cli.exits import FAILED
from octavo_cli.pass_through import PASS_THROUGH, PassThrough


def gate(
    context: typer.Context,
    model: Model = "",
    manifest: ManifestFile = "",
    run_dir: RunDir = "",
    scheduler: Annotated[str, typer.Option("--scheduler", help="host:port; absent: the run folder's.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Run the release gate on a cluster that is not ready yet. Checks, a benchmark, the verdict.

    `octavo up` does this by itself when release_gate.enabled is set; elsewhere run it beside the gateway, on its run
    folder. A pass opens the gateway; on a failure it stays closed and this ends with exit code 1.
    """
    settings = load_settings(service_flags(context.args, model, manifest), os.environ).manifest
    if not settings.release_gate.enabled:
        raise ManifestError("release_gate.enabled: is false; set it for the gateway and here", field="release_gate")
    chosen_checks((), settings.release_gate.skip)
    if settings.release_gate.reference:
        read_reference(Path(settings.release_gate.reference))
    folder = Path(run_dir or settings.deployment.run_dir).absolute()
    address = checked_scheduler(scheduler) if scheduler else scheduler_of("", str(folder))
    keys = _one_key_per_tenant(settings.tenants.keys)
    quiet = (lambda _result: None) if as_json else show
    verdict = asyncio.run(run_gate(settings.release_gate, folder, address, keys, quiet))
    form = json.dumps(verdict.to_json())
    (folder / REPORT).write_text(form + "\n", encoding="utf-8")
    typer.echo(form if as_json else f"release gate {'passed' if verdict.passed else 'failed'}: {verdict.said}")
    if not verdict.passed:
        raise typer.Exit(FAILED)


def _one_key_per_tenant(keys: Mapping[str, str]) -> list[str]:
    return list({tenant: key for key, tenant in keys.items()}.values())


def register(app: typer.Typer) -> None:
    """Adds the subcommand."""
    app.command(cls=PassThrough, context_settings=PASS_THROUGH)(gate)
