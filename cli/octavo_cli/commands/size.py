"""size: what a model takes in every tier; with `cag` for the model, what keeping a corpus cached is worth."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Annotated

import typer
from octavo.rpc.settings import load_settings

from octavo_cli.commands.cluster import ManifestFile, service_flags
from octavo_cli.exits import NoCluster
from octavo_cli.pass_through import PASS_THROUGH, PassThrough
from octavo_cli.size.cag import Plan, Rates, check, chunk_tokens, self_hosted, usable_number
from octavo_cli.size.kv import kv_size
from octavo_cli.size.rates import measured_rates
from octavo_cli.size.report import Question, cag_lines, cag_report, size_lines, size_report
from octavo_cli.size.shape import BadSize, read_shape

CAG = "cag"
CAG_ONLY = ("chunks", "question", "cp", "cc", "retrieval", "build", "reuse", "retrieval_ms", "prefill_us", "loaded")


def size(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="smollm2, a .gguf, a model folder or its config.json; cag: CAG against RAG.")
    ],
    tokens: Annotated[
        int,
        typer.Option("--context", help="Tokens of a sequence, or of the corpus; 0: what the model was trained for."),
    ] = 0,
    concurrency: Annotated[int, typer.Option("--concurrency", help="Sequences at once; 0: as many as fit.")] = 0,
    kv_dtype: Annotated[
        str, typer.Option("--kv-dtype", help="auto, bfloat16, float16, float32, int8 or fp8.")
    ] = "auto",
    tp: Annotated[int, typer.Option("--tp", help="Ranks that share the heads.")] = 1,
    chunks: Annotated[str, typer.Option("--chunks", help="cag: COUNTxTOKENS that retrieval would bring.")] = "10x500",
    question: Annotated[int, typer.Option("--question", help="cag: tokens of the question.")] = 500,
    system: Annotated[int, typer.Option("--system", help="cag: tokens of instructions, cached in both ways.")] = 500,
    cp: Annotated[float, typer.Option("--cp", help="cag: price of a million fresh tokens.")] = 1.0,
    cc: Annotated[float, typer.Option("--cc", help="cag: price of a million cached tokens.")] = 0.1,
    retrieval: Annotated[float, typer.Option("--retrieval", help="cag: price of one retrieval.")] = 0.0,
    build: Annotated[float, typer.Option("--build", help="cag: price of building the cache once.")] = 0.0,
    reuse: Annotated[int, typer.Option("--reuse", help="cag: requests per build.")] = 100,
    retrieval_ms: Annotated[float, typer.Option("--retrieval-ms", help="cag: time of one retrieval.")] = 20.0,
    prefill_us: Annotated[
        float, typer.Option("--prefill-us", help="cag: microseconds per fresh token, where no cluster runs.")
    ] = 0.0,
    load_gib_s: Annotated[
        float, typer.Option("--load-gib-s", help="cag: GiB/s of the tier below the pool, where no cluster runs.")
    ] = 1.0,
    hours: Annotated[float, typer.Option("--hours", help="cag: how long the corpus is kept.")] = 1.0,
    scarcity: Annotated[
        float, typer.Option("--scarcity", help="cag: 0 to 1, how much of the pool others would have used.")
    ] = 0.0,
    loaded: Annotated[
        bool,
        typer.Option("--loaded", help="cag: each use loads it from the tier below instead of finding it in the pool."),
    ] = False,
    run_dir: Annotated[str, typer.Option("--run-dir", help="Run folder of the cluster whose rates count.")] = "",
    manifest: ManifestFile = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Tell the bytes of a model, its KV and activations. And what fits where; takes settings as flags."""
    given = {name for name in CAG_ONLY if _was_given(context, name)}
    settings = load_settings(service_flags(context.args, manifest=manifest), os.environ).manifest
    if model != CAG:
        if given:
            option = sorted(given)[0].replace("_", "-")
            raise BadSize(f"--{option}: is for `octavo size cag`; leave it out for a model", field=option)
        asked = Question(
            tokens,
            concurrency,
            kv_dtype if _was_given(context, "kv_dtype") else settings.engine.kv_dtype,
            tp,
            settings.engine.kv_block_tokens,
            settings.scheduler.max_num_batched_tokens,
            {
                "hbm": settings.engine.kv_pool_bytes,
                "dram": settings.cache.dram_bytes,
                "nvme": settings.cache.nvme_bytes,
            },
        )
        report = size_report(read_shape(model), asked)
        lines = size_lines(report)
    else:
        for name, value in (("retrieval-ms", retrieval_ms), ("hours", hours), ("prefill-us", prefill_us)):
            if not usable_number(name, value) >= 0:
                raise BadSize(f"--{name}: {value:g} is negative; give 0 or more", field=name)
        if not 0 <= scarcity <= 1:
            raise BadSize(f"--scarcity: {scarcity:g} must lie in [0, 1]", field="scarcity")
        plan = check(Plan(tokens or 100_000, chunk_tokens(chunks), question, system, cp, cc, retrieval, build, reuse))
        rates = asyncio.run(_rates(run_dir, prefill_us, load_gib_s, settings.model.ref, settings.engine.kv_pool_bytes))
        hosted = None
        if rates is not None:
            hosted = self_hosted(plan, rates, retrieval_ms=retrieval_ms, hours=hours, scarcity=scarcity, loaded=loaded)
        report = cag_report(plan, hosted, rates)
        lines = cag_lines(report)
    typer.echo(json.dumps(report) if as_json else "\n".join(lines))


async def _rates(run_dir: str, prefill_us: float, load_gib_s: float, ref: str, pool_bytes: int) -> Rates | None:
    """What the running cluster measured, else what the options say, else None."""
    if not usable_number("load-gib-s", load_gib_s) > 0:
        raise BadSize(f"--load-gib-s: {load_gib_s:g} must be above 0", field="load-gib-s")
    if prefill_us:
        token_bytes = kv_size(read_shape(ref)).token_bytes
        return Rates(0.0, prefill_us, 0.0, 512, token_bytes, pool_bytes, load_gib_s * 2**30, 0.0, "the options given")
    try:
        return await measured_rates(run_dir)
    except NoCluster:
        if run_dir:
            raise
        return None


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def register(app: typer.Typer) -> None:
    """Adds the subcommand."""
    app.command(cls=PassThrough, context_settings=PASS_THROUGH)(size)
