"""check: the correctness gate."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from octavo_cli.addresses import checked_scheduler
from octavo_cli.check import parity, quality
from octavo_cli.check.gate import Report, chosen_checks, run_checks
from octavo_cli.check.reference import Reference, read_reference, shipped, write_reference
from octavo_cli.check.result import Result
from octavo_cli.check.subject import Precision, Subject
from octavo_cli.commands.bench import tell
from octavo_cli.exits import FAILED, NoCluster
from octavo_cli.locate import gateway_url, run_dir_of
from octavo_cli.outputs import check_output
from octavo_cli.state import running_state

MARKS = {"pass": "ok  ", "fail": "FAIL", "skip": "skip"}


def check(
    url: Annotated[str, typer.Option("--url", help="grpc://host:port; absent: the run folder's cluster.")] = "",
    run_dir: Annotated[
        str, typer.Option("--run-dir", help="Run folder of the cluster; absent: deployment.run_dir.")
    ] = "",
    scheduler: Annotated[
        str, typer.Option("--scheduler", help="host:port, to count blocks; absent: the run folder's.")
    ] = "",
    api_key: Annotated[str, typer.Option("--api-key", help="Key of your tenant.")] = "",
    other_api_key: Annotated[
        str, typer.Option("--other-api-key", help="Of another tenant, who must not find the first one's prefixes.")
    ] = "",
    reference: Annotated[str, typer.Option("--reference", help="A reference file; absent: the shipped one.")] = "",
    record: Annotated[
        str, typer.Option("--record", help="Write the served model's own answers as a reference, and check nothing.")
    ] = "",
    variant: Annotated[
        bool, typer.Option("--variant", help="The weights differ from the reference on purpose; quality judges them.")
    ] = False,
    precision: Annotated[
        Precision, typer.Option("--precision", help="Of the served model; float32 has far closer tolerances.")
    ] = "bfloat16",
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="<str>", help="This check; may be given several times.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="<str>", help="Not this one; may be given several times.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check that the served model answers as it must. Exit code 0: nothing failed; 1: something did."""
    names = chosen_checks(only or [], skip or [])
    check_output("record", record, stdout=False)
    found = read_reference(Path(reference)) if reference else None
    address = gateway_url(url, run_dir)
    cell = checked_scheduler(scheduler) if scheduler else scheduler_of(url, run_dir)
    subject = Subject(address, cell, api_key, other_api_key, precision)
    if record:
        path = Path(record)
        known = read_reference(path) if path.is_file() else None
        made = asyncio.run(_record(subject, known, names))
        write_reference(path, made)
        tell(f"{path}: {len(made.parity)} prompts of {made.model}, quality {made.quality}")
        return
    report = asyncio.run(_check(subject, found, names, variant, as_json))
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    else:
        typer.echo(f"{report.model}: {report.claim}" + (f" ({report.why})" if report.why else ""))
    if not report.passed:
        raise typer.Exit(FAILED)


async def _check(subject: Subject, found: Reference | None, names: list[str], variant: bool, quiet: bool) -> Report:
    async with subject:
        reference = found or shipped((await subject.model()).id)
        return await run_checks(subject, reference, names, variant, (lambda _result: None) if quiet else show)


async def _record(subject: Subject, known: Reference | None, names: list[str]) -> Reference:
    """Parts that are not named stay as they were known."""
    async with subject:
        model = await subject.model()
        found = replace(known or Reference(model.id), model=model.id)
        how = {"fingerprint": model.fingerprint}
        if "parity" in names:
            found = replace(found, parity=await parity.record(subject), recorded={**found.recorded, "parity": how})
        if "quality" in names:
            found = replace(found, quality=await quality.measure(subject), recorded={**found.recorded, "quality": how})
    return found


def show(result: Result) -> None:
    """One line per check."""
    facts = "  ".join(f"{key} {value}" for key, value in result.facts.items())
    typer.echo(f"{MARKS[result.verdict]}  {result.name:<10} {result.seconds:6.2f} s  {result.said or facts}")


def scheduler_of(url: str, run_dir: str) -> str:
    """The scheduler of the run folder's cluster, unless another gateway was named."""
    if url and not run_dir:
        return ""
    try:
        state = running_state(run_dir_of(run_dir))
    except NoCluster:
        return ""
    return next((item.address for item in state.services if item.kind == "scheduler"), "")


def register(app: typer.Typer) -> None:
    """Adds the subcommand."""
    app.command()(check)
