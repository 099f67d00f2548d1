"""simulate: the scheduler's real core with simulated workers, and the replay of what a live one was given."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from octavo.figures import Figure, Figures, from_json
from octavo.rpc.settings import load_settings

from octavo_cli.bench.arrivals import OpenLoop, arrival_times, check_loop
from octavo_cli.bench.traces import read_trace
from octavo_cli.bench.work import BadPlan
from octavo_cli.bench.workloads import Shape, make_workload
from octavo_cli.commands import load_options
from octavo_cli.commands.bench import show_figures, tell
from octavo_cli.commands.cluster import ManifestFile, service_flags
from octavo_cli.exits import FAILED
from octavo_cli.inputs import reading_fault
from octavo_cli.outputs import check_output
from octavo_cli.pass_through import PASS_THROUGH, PassThrough
from octavo_cli.simulate.picture import check, draw, panels
from octavo_cli.simulate.roles import compare, setups_of
from octavo_cli.simulate.rows import rows_of
from octavo_cli.simulate.simulator import ask, hardware_named, policy_flags


def simulate(
    context: typer.Context,
    workers: Annotated[int, typer.Option("--workers", help="1 to 4,000, spread over cells.")] = 1,
    requests: Annotated[int, typer.Option("--requests", help="Requests; with --trace: 0 takes all.")] = 0,
    rate: Annotated[
        str, typer.Option("--rate", help="Sessions per second; several, as 50,100,150, give a goodput curve.")
    ] = "",
    seed: Annotated[int, typer.Option("--seed", help="Of arrivals and workload.")] = 0,
    hardware: Annotated[
        str, typer.Option("--hardware", help="h200-8b, h200-70b-tp4, this-cpu, a JSON file or an event log to fit.")
    ] = "h200-8b",
    arrivals: Annotated[
        str, typer.Option("--arrivals", help="poisson, gamma (bursts), constant, replay; absent: replay for a trace.")
    ] = "",
    burstiness: load_options.Burstiness = 2.0,
    speed: load_options.Speed = 1.0,
    workload: load_options.Workload = "random",
    trace: load_options.Trace = "",
    trace_format: load_options.TraceFormat = "",
    prompt_tokens: load_options.PromptTokens = 512,
    max_tokens: load_options.MaxTokens = 128,
    length_spread: load_options.LengthSpread = 0.0,
    prefix_tokens: load_options.PrefixTokens = 512,
    prefixes: load_options.Prefixes = 4,
    turns: load_options.Turns = 4,
    pause_s: load_options.PauseS = 1.0,
    tenants: Annotated[int, typer.Option("--tenants", min=1, help="Sessions take turns among so many tenants.")] = 1,
    slo_classes: Annotated[
        str, typer.Option("--slo-classes", help="Sessions take turns among these of scheduler.slo_classes: a,b.")
    ] = "",
    cell_workers: Annotated[int, typer.Option("--cell-workers", help="Workers per scheduler cell at most.")] = 128,
    cost_per_hour: Annotated[
        float, typer.Option("--cost-per-hour", help="Of one worker, for cost per good request.")
    ] = 0.0,
    autoscale: Annotated[
        str,
        typer.Option(
            "--autoscale", help="Let the workers follow the load: queue, tokens, slo; several compare: queue,slo."
        ),
    ] = "",
    scale_delay: Annotated[
        str,
        typer.Option(
            "--scale-delay", help="autoscale: from the order of a worker to its first request, as 240s or 4m."
        ),
    ] = "240s",
    spare: Annotated[int, typer.Option("--spare", help="autoscale: workers kept beyond what is wanted.")] = 0,
    roles: Annotated[
        str,
        typer.Option(
            "--roles",
            help="Worker roles side by side: aggregated,hybrid,1P3D (prefill and decode workers), one cell each.",
        ),
    ] = "",
    manifest: ManifestFile = "",
    json_path: load_options.JsonPath = "",
    plot_path: Annotated[str, typer.Option("--plot", help="Write goodput and course to this .svg or .png file.")] = "",
    replay: Annotated[
        str, typer.Option("--replay", help="Feed this event log (scheduler.event_log) to a core, compare its orders.")
    ] = "",
) -> None:
    """Run the scheduler's core against simulated workers. Takes every --scheduler.field flag."""
    flags = policy_flags(load_settings(service_flags(context.args, manifest=manifest), os.environ))
    if replay:
        raise typer.Exit(_replay(Path(replay)))
    check_output("json", json_path)
    check_output("plot", plot_path, stdout=False)
    if plot_path:
        check(Path(plot_path))
    shape = Shape(
        requests or 1000, prompt_tokens, max_tokens, length_spread, prefix_tokens, prefixes, turns, pause_s, seed
    )
    kind = arrivals or ("replay" if trace and not rate else "poisson")
    loops = [(suffix, OpenLoop(kind, value, 0.0, burstiness, speed)) for suffix, value in _rates(rate, kind)]
    for _suffix, loop in loops:
        check_loop(loop)
    load = read_trace(Path(trace), trace_format, requests, max_tokens) if trace else make_workload(workload, shape)
    task = {
        "hardware": hardware_named(hardware),
        "workers": workers,
        "cell_workers": cell_workers,
        "cost_per_hour": cost_per_hour,
    }
    if autoscale:
        rules = [name.strip() for name in autoscale.split(",")]
        task["autoscale"] = {"rules": rules, "delay_s": _seconds(scale_delay), "spare": spare}
    setups = setups_of(roles, workers) if roles else []
    if setups and (len(loops) > 1 or plot_path):
        raise BadPlan("--roles: compares at one rate and draws nothing; give one --rate, no --plot", field="roles")
    if autoscale and (setups or plot_path):
        raise BadPlan(
            "--autoscale: goes without --roles and draws nothing; leave out --roles and --plot", field="autoscale"
        )
    results: list[Figure] = []
    points: dict[str, Any] = {}
    answer: dict[str, Any] = {}
    table: list[str] = []
    for suffix, loop in loops:
        began_s = time.perf_counter()
        times_s = arrival_times(loop, len(load.sessions), [session.at_s for session in load.sessions], seed)
        rows = rows_of(load, times_s, tenants, [name for name in slo_classes.split(",") if name])
        if setups:
            results, answer, table = compare(setups, list(rows), task, partial(ask, flags=flags), tell)
            continue
        answer = ask(task, (json.dumps(row) for row in rows), flags)
        results += [replace(item, name=f"{item.name}/{suffix}") for item in from_json(answer["figures"]).results]
        points[suffix] = answer["points"]
        tell(f"{suffix}: {load.requests} requests simulated in {time.perf_counter() - began_s:.1f} s")
    config = {
        "workload": load.name,
        "digest": load.digest(),
        "parameters": dict(load.parameters),
        "arrivals": {"kind": kind, "burstiness": burstiness, "speed": speed, "seed": seed},
        "workers": workers,
        "cells": answer["cells"],
        "hardware": answer["hardware"],
        "policy": answer["policy"],
        "tenants": tenants,
        "slo_classes": slo_classes,
        **({"roles": {setup.name: setup.roles for setup in setups}} if setups else {}),
    }
    figures = Figures("simulate", tuple(results), config)
    if plot_path:
        draw(Path(plot_path), panels(figures, [(suffix, loop.rate_per_s) for suffix, loop in loops], points))
    show_figures(figures, json_path)
    for line in table:  # behind the figures, which are many
        tell(line)


def _seconds(text: str) -> float:
    """A duration such as 240s, 4m or 1h. Raises BadPlan."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)", text.strip())
    if found is None:
        raise BadPlan(f"--scale-delay: {text!r} is no duration; write 240s, 4m or 1h", field="scale-delay")
    return float(found.group(1)) * {"s": 1, "m": 60, "h": 3600}[found.group(2)]


def _rates(text: str, kind: str) -> list[tuple[str, float]]:
    """(suffix of the figures' names, sessions per second) of each run. Raises BadPlan."""
    if kind == "replay":
        if text:
            raise BadPlan(
                "--rate: a replay has the trace's own times; give --speed, or --arrivals poisson", field="rate"
            )
        return [("replay", 0.0)]
    if not text:
        raise BadPlan("--rate: is missing; give sessions per second, or a trace with timestamps", field="rate")
    rates: list[tuple[str, float]] = []
    for word in text.split(","):
        try:
            value = float(word)
        except ValueError:
            raise BadPlan(
                f"--rate: {word!r} is no number; give sessions per second, as 50 or 50,100", field="rate"
            ) from None
        if not 0 < value < 1e9:
            raise BadPlan(f"--rate: {word} must be above 0 requests/s", field="rate")
        rates.append((f"r{value:g}", value))
    if len({suffix for suffix, _value in rates}) < len(rates):
        raise BadPlan(f"--rate: {text} names a rate twice", field="rate")
    return rates


def _replay(path: Path) -> int:
    """Tells how a replay went; the exit code."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadPlan(f"--replay: {path} cannot be read: {reading_fault(error)}", field="replay") from error
    played = ask({"replay": True}, lines)
    typer.echo(f"{played['events']} events, {played['orders']} orders")
    if played["difference"]:
        typer.echo(f"octavo: the orders differ at {played['difference'][:2000]}", err=True)
        return FAILED
    if played.get("cut"):
        typer.echo("the last line is half a line, as a scheduler that was killed leaves it: left out")
    typer.echo("every order is byte-equal")
    return 0


def register(app: typer.Typer) -> None:
    """Adds the subcommand."""
    app.command(cls=PassThrough, context_settings=PASS_THROUGH)(simulate)
