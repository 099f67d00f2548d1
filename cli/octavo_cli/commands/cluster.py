"""serve, up, down, status: the life of a cluster."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from octavo.manifest import ManifestError
from octavo.rpc.settings import load_settings
from rich.console import Console

from octavo_cli import up as up_module
from octavo_cli.exits import FAILED, NO_CLUSTER, OK, NoCluster
from octavo_cli.json_watcher import JsonWatcher
from octavo_cli.pass_through import PASS_THROUGH, PassThrough
from octavo_cli.plan import KINDS, MODULES
from octavo_cli.status import read_status, state_urls, status_lines

Model = Annotated[str, typer.Option("--model", help="smollm2, a .gguf file or a Hugging Face folder.")]
ManifestFile = Annotated[str, typer.Option("--manifest", help="The serving manifest, a YAML file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def service_flags(passed: list[str], model: str = "", manifest: str = "") -> list[str]:
    """The flags of a service for what was given to octavo."""
    flags = ["--manifest", os.path.abspath(manifest)] if manifest else []
    return [*flags, *(["--model.ref", model] if model else []), *passed]


RunDir = Annotated[str, typer.Option("--run-dir", help="Run folder of the cluster; absent: deployment.run_dir.")]


def run_dir_for(context: typer.Context, run_dir: str, manifest: str) -> Path:
    """The run folder that --run-dir, else settings flags, environment and manifest point at."""
    if run_dir:
        return Path(run_dir).absolute()
    return Path(
        load_settings(service_flags(context.args, manifest=manifest), os.environ).manifest.deployment.run_dir
    ).absolute()


def serve(
    context: typer.Context,
    service: Annotated[str, typer.Argument(help="gateway, scheduler, gpuworker or kvstore.")],
    model: Model = "",
    manifest: ManifestFile = "",
    as_json: Annotated[bool, typer.Option("--json", help="Log JSON, whatever the manifest says.")] = False,
) -> None:
    """Run one service, as compose and Kubernetes do. In the foreground; takes every --section.field flag."""
    if service not in KINDS:
        raise ManifestError(f"{service!r} is no service; choose from {', '.join(KINDS)}", field="service")
    flags = service_flags([*context.args, *(["--deployment.log_format", "json"] if as_json else [])], model, manifest)
    command = [sys.executable, "-m", MODULES[service], *flags]
    sys.stdout.flush()
    os.execv(sys.executable, command)


def up(
    context: typer.Context,
    workers: Annotated[int, typer.Option("--workers", help="How many gpuworkers.")] = 1,
    roles: Annotated[
        str, typer.Option("--roles", help="Role of each worker, as prefill,decode; how many there are follows from it.")
    ] = "",
    model: Model = "",
    manifest: ManifestFile = "",
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when the cluster is ready.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; in the foreground a line per event.")] = False,
    ready_timeout_s: Annotated[float, typer.Option("--ready-timeout-s", help="Give up starting after this.")] = 600.0,
    module: Annotated[list[str] | None, typer.Option("--module", hidden=True)] = None,
) -> None:
    """Start the local cluster. Scheduler, kvstore, workers and gateway; takes every --section.field flag (docs/operations.md lists them)."""
    flags = service_flags(context.args, model, manifest)
    modules = MODULES | dict(item.split("=", 1) for item in module or [])
    given = [word.strip() for word in roles.split(",")] if roles else []
    if given and workers not in (1, len(given)):
        raise ManifestError(f"--workers: {workers} and {len(given)} roles; leave one of both out", field="workers")
    workers = len(given) or workers
    if not detach:
        watcher = JsonWatcher(sys.stdout) if as_json else None
        raise typer.Exit(up_module.run_foreground(flags, workers, ready_timeout_s, watcher, modules, given))
    state = up_module.start_detached(flags, workers, ready_timeout_s, Console(stderr=True), modules, given)
    if as_json:
        typer.echo(json.dumps({"ready": True, "urls": state.urls}))
    else:
        typer.echo("\n".join(state_urls(state)))


def down(context: typer.Context, as_json: AsJson = False, run_dir: RunDir = "", manifest: ManifestFile = "") -> None:
    """Drain and stop the cluster of the run folder."""
    folder = run_dir_for(context, run_dir, manifest)
    try:
        code = up_module.stop_cluster(folder)
    except NoCluster as error:
        if as_json:
            typer.echo(json.dumps({"stopped": False, "clean": True, "run_dir": str(folder), "why": str(error)}))
        else:
            typer.echo(f"octavo: {error}", err=True)
        raise typer.Exit(OK) from error  # stopping what does not run is done already
    said = {"stopped": True, "clean": code == OK, "run_dir": str(folder)}
    typer.echo(json.dumps(said) if as_json else f"stopped the cluster of {folder}")
    raise typer.Exit(code)


def status(
    context: typer.Context,
    as_json: AsJson = False,
    config: Annotated[bool, typer.Option("--config", help="Effective settings of each service, with sources.")] = False,
    run_dir: RunDir = "",
    manifest: ManifestFile = "",
) -> None:
    """Show whether the cluster is ready, and its parts. URLs, services and blocks. Exit code 0 ready, 1 not ready, 4 no cluster."""
    folder = run_dir_for(context, run_dir, manifest)
    try:
        found = asyncio.run(read_status(folder, config))
    except NoCluster as error:
        if not as_json:
            raise
        blocks = {"total": None, "free": None, "cached": None, "leaked": None, "out_of_use": None}
        found = {"ready": False, "urls": {}, "services": [], "blocks": blocks, "why": str(error)}
        typer.echo(json.dumps(found))
        raise typer.Exit(NO_CLUSTER) from error
    typer.echo(json.dumps(found) if as_json else "\n".join(status_lines(found)))
    raise typer.Exit(OK if found["ready"] else FAILED)


def register(app: typer.Typer) -> None:
    """Adds the subcommands of this module."""
    for command in (serve, up, down, status):
        app.command(cls=PassThrough, context_settings=PASS_THROUGH)(command)
