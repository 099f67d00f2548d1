"""bench serve: load on a gateway or any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from octavo.rpc.wakeups import shorten_slices

from octavo_cli.bench.options import Options, plan_at, plan_of, target_of
from octavo_cli.bench.page import page
from octavo_cli.bench.serve import Measured, measure
from octavo_cli.bench.sweep import sweep
from octavo_cli.bench.work import BadPlan
from octavo_cli.bench.workloads import Shape
from octavo_cli.commands import load_options
from octavo_cli.commands.bench import measured_cluster, show_figures, tell
from octavo_cli.exits import FAILED
from octavo_cli.outputs import check_outputs, write_output

WAKEUP_SLICE_US = 200
"""As deployment.wakeup_slice_us has it for the services."""
MANY_TOKENS_UNKNOWN = "the server counts no tokens on its chunks: output tokens were estimated, one per chunk"


def serve(
    url: Annotated[
        str, typer.Option("--url", help="grpc://host:port or http://host:port/v1; absent: the run folder's cluster.")
    ] = "",
    arrivals: Annotated[
        str,
        typer.Option(
            "--arrivals",
            help="poisson, gamma, constant, replay (open loops) or closed; absent: poisson with --rate, else closed.",
        ),
    ] = "",
    rate: Annotated[float, typer.Option("--rate", help="Sessions per second of an open loop, on average.")] = 0.0,
    duration: Annotated[float, typer.Option("--duration", help="Seconds in which they arrive.")] = 0.0,
    burstiness: load_options.Burstiness = 2.0,
    speed: load_options.Speed = 1.0,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="closed: clients at once.")] = 4,
    requests: Annotated[
        int, typer.Option("--requests", min=0, help="Requests in all; 0: 32, or as many as --duration needs.")
    ] = 0,
    workload: load_options.Workload = "random",
    trace: load_options.Trace = "",
    trace_format: load_options.TraceFormat = "",
    prompt_tokens: load_options.PromptTokens = 128,
    max_tokens: load_options.MaxTokens = 64,
    length_spread: load_options.LengthSpread = 0.0,
    prefix_tokens: load_options.PrefixTokens = 512,
    prefixes: load_options.Prefixes = 4,
    turns: load_options.Turns = 4,
    pause_s: load_options.PauseS = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Of workload, arrivals and sampling.")] = 0,
    cancel_share: Annotated[float, typer.Option("--cancel-share", help="Share whose client leaves early.")] = 0.0,
    cancel_after: Annotated[int, typer.Option("--cancel-after", help="Tokens after which it leaves.")] = 4,
    duplicate_share: Annotated[float, typer.Option("--duplicate-share", help="Share that is sent twice.")] = 0.0,
    slo: Annotated[str, typer.Option("--slo", help="ttft=500ms,itl_p99=50ms; also tpot, e2e, itl_max.")] = "",
    do_sweep: Annotated[
        bool, typer.Option("--sweep", help="Find the highest rate with 90% within --slo, beginning at --rate.")
    ] = False,
    cache: Annotated[str, typer.Option("--cache", help="cold, warm, both or as-is.")] = "cold",
    warmup: Annotated[int, typer.Option("--warmup", min=0, help="Requests before, in no figure.")] = 4,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 0.0,
    top_p: Annotated[
        float, typer.Option("--top-p", help="Draw from the likeliest that hold this share, 0 to 1.")
    ] = 1.0,
    stop_at_eos: Annotated[bool, typer.Option("--stop-at-eos", help="Answers may end before --max-tokens.")] = False,
    fit: Annotated[bool, typer.Option("--fit", help="Leave out what the context cannot hold.")] = False,
    cost_per_hour: Annotated[float, typer.Option("--cost-per-hour", help="Of the machines that serve.")] = 0.0,
    multiplex: Annotated[
        bool, typer.Option("--multiplex/--no-multiplex", help="gRPC: all requests on one stream, or a stream each.")
    ] = True,
    model: Annotated[str, typer.Option("--model", help="Served model id.")] = "",
    run_dir: Annotated[
        str, typer.Option("--run-dir", help="Run folder of the cluster; absent: deployment.run_dir.")
    ] = "",
    api_key: Annotated[str, typer.Option("--api-key", help="Key of your tenant.")] = "",
    json_path: load_options.JsonPath = "",
    html_path: Annotated[str, typer.Option("--html", help="Write one page with plots to this file; -: stdout.")] = "",
) -> None:
    """Load a server: latencies, goodput, throughput, cost. TTFT, ITL, TPOT and E2E. Starts a cluster of its own when none runs."""
    shape = Shape(32, prompt_tokens, max_tokens, length_spread, prefix_tokens, prefixes, turns, pause_s, seed)
    options = Options(
        arrivals=arrivals or ("poisson" if rate else "replay" if trace and duration else "closed"),
        rate=rate,
        duration_s=duration,
        burstiness=burstiness,
        speed=speed,
        concurrency=concurrency,
        requests=requests,
        workload=workload,
        trace=trace,
        trace_format=trace_format,
        shape=shape,
        cancel_share=cancel_share,
        cancel_after=cancel_after,
        duplicate_share=duplicate_share,
        slo=slo,
        cache=cache,
        warmup=warmup,
        temperature=temperature,
        top_p=top_p,
        stop_at_eos=stop_at_eos,
        cost_per_hour=cost_per_hour,
        fit=fit,
        multiplex=multiplex,
    )
    check_outputs(json=json_path, html=html_path)
    if do_sweep and rate <= 0:
        raise BadPlan("--sweep: needs --rate to begin at, in sessions per second", field="rate")
    plan_at(options, rate) if do_sweep else plan_of(options)  # what cannot be sent is told before a cluster starts
    with measured_cluster(url, run_dir) as address:
        try:
            measured = asyncio.run(_run(address, api_key, model, options, do_sweep))
        except KeyboardInterrupt:
            tell("interrupted: no figures are written, for they would be of the quick requests alone")
            raise
    notes = _notes(measured)
    show_figures(measured.figures, json_path)
    if html_path:
        write_output(html_path, page(measured.figures, measured.runs, notes))
    for note in notes:
        tell(note)
    if not do_sweep and any(item.name.startswith("errors") and item.value for item in measured.figures.results):
        raise typer.Exit(FAILED)


async def _run(address: str, api_key: str, model: str, options: Options, do_sweep: bool) -> Measured:
    shorten_slices(WAKEUP_SLICE_US)  # punctual beside a server that computes on the same cores
    async with target_of(address, api_key, model, multiplex=options.multiplex) as target:
        if do_sweep:
            return await sweep(target, lambda rate: plan_at(options, rate), options.rate, tell)
        return await measure(target, plan_of(options), tell)


def _notes(measured: Measured) -> list[str]:
    """What a reader of the figures must know besides them."""
    notes = [f"a request failed or was refused: {reason}" for reason in measured.complaints()[:3]]
    samples = [sample for run in measured.runs.values() for sample in run.samples]
    if any(not sample.tokens_known for sample in samples):
        notes.append(MANY_TOKENS_UNKNOWN)
    late = sum(sample.lag_ms > 50.0 for sample in samples)
    if late:
        notes.append(f"the client itself sent {late} of {len(samples)} requests more than 50 ms late: it was too slow")
    return notes


def register(group: typer.Typer) -> None:
    """Adds the command to the group."""
    group.command()(serve)
