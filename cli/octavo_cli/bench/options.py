"""From the words of the command line to a plan. Raises BadPlan naming the option."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from octavo_cli.addresses import HTTP
from octavo_cli.bench.arrivals import ClosedLoop, OpenLoop, arrival_times, check_loop
from octavo_cli.bench.grpc_target import GrpcTarget
from octavo_cli.bench.http_target import HttpTarget
from octavo_cli.bench.runner import Asking
from octavo_cli.bench.serve import CACHE_STATES, Plan
from octavo_cli.bench.slo import parse_slo
from octavo_cli.bench.target import Target
from octavo_cli.bench.traces import read_trace
from octavo_cli.bench.work import BadPlan, Workload, check_number, with_cancels, with_duplicates
from octavo_cli.bench.workloads import Shape, make_workload

SPARE_ARRIVALS = 1.5
"""Sessions made for an open loop of a duration, over the mean number that arrives: a burst may bring more."""

MAX_ARRIVALS = 2_000_000
"""More would be made in memory before the first is sent; give --requests for what is really meant."""


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for, as it was written."""

    arrivals: str = "closed"
    rate: float = 0.0
    duration_s: float = 0.0
    burstiness: float = 2.0
    speed: float = 1.0
    concurrency: int = 4
    requests: int = 0
    workload: str = "random"
    trace: str = ""
    trace_format: str = ""
    shape: Shape = field(default_factory=Shape)
    cancel_share: float = 0.0
    cancel_after: int = 4
    duplicate_share: float = 0.0
    slo: str = ""
    cache: str = "cold"
    warmup: int = 4
    temperature: float = 0.0
    top_p: float = 1.0
    stop_at_eos: bool = False
    cost_per_hour: float = 0.0
    fit: bool = False
    multiplex: bool = True


def target_of(url: str, api_key: str = "", model: str = "", *, multiplex: bool = True) -> Target:
    """http(s)://.../v1 is an OpenAI-compatible server, everything else one of our gateways."""
    if url.startswith(HTTP):
        return HttpTarget(url, api_key, model)
    return GrpcTarget(url, api_key, model, multiplex=multiplex)


def plan_of(options: Options) -> Plan:
    """The plan. Raises BadPlan."""
    loop = _loop(options)  # before the workload, whose size depends on it
    if options.cache not in CACHE_STATES:
        raise BadPlan(f"--cache: {options.cache!r} is unknown; use {', '.join(CACHE_STATES)}", field="cache")
    check_number("cost-per-hour", options.cost_per_hour)
    check_number("temperature", options.temperature)
    check_number("top-p", options.top_p, above=True, most=1)
    check_number("cancel-after", options.cancel_after, 1)
    workload = _workload(options)
    if isinstance(loop, OpenLoop) and loop.kind == "replay":  # times that cannot be replayed are told before a warm-up
        arrival_times(loop, len(workload.sessions), [session.at_s for session in workload.sessions], 0)
    return Plan(
        workload=workload,
        loop=loop,
        slo=parse_slo(options.slo),
        asking=Asking(options.temperature, options.top_p, options.shape.seed, not options.stop_at_eos),
        cache=options.cache,
        warmup_requests=options.warmup,
        cost_per_hour=options.cost_per_hour,
        fit=options.fit,
        seed=options.shape.seed,
    )


def plan_at(options: Options, rate: float) -> Plan:
    """The same plan at another rate, for a sweep. Raises BadPlan for a closed loop or one without an end."""
    if options.arrivals in ("closed", "replay"):
        raise BadPlan("--sweep: needs a rate to change; give --arrivals poisson, gamma or constant", field="arrivals")
    if not options.duration_s:
        raise BadPlan("--sweep: needs --duration, the seconds at each rate", field="duration")
    plan = plan_of(replace(options, rate=rate))
    if not plan.slo.bounds_ms:
        raise BadPlan("--sweep: needs bounds to hold; give --slo ttft=500ms,itl_p99=50ms", field="slo")
    return plan


def _loop(options: Options) -> OpenLoop | ClosedLoop:
    if options.arrivals == "closed":
        if options.rate or options.duration_s:
            raise BadPlan(
                "--rate, --duration: a closed loop has none; give --arrivals poisson, or --concurrency and --requests",
                field="arrivals",
            )
        return ClosedLoop(options.concurrency)
    loop = OpenLoop(options.arrivals, options.rate, options.duration_s, options.burstiness, options.speed)
    check_loop(loop)
    if loop.kind == "replay" and not options.trace:
        raise BadPlan("--arrivals: replay needs a trace with timestamps; give --trace FILE", field="arrivals")
    return loop


def _workload(options: Options) -> Workload:
    if options.trace:
        workload = read_trace(Path(options.trace), options.trace_format, options.requests, options.shape.max_tokens)
    else:
        workload = make_workload(options.workload, replace(options.shape, requests=_requests(options)))
    if options.cancel_share:
        workload = with_cancels(workload, options.cancel_share, options.cancel_after, options.shape.seed)
    if options.duplicate_share:
        workload = with_duplicates(workload, options.duplicate_share, options.shape.seed)
    return workload


def _requests(options: Options) -> int:
    if options.requests:
        return options.requests
    if options.arrivals == "closed" or not options.duration_s:
        return options.shape.requests
    arriving = max(1, math.ceil(options.rate * options.duration_s * SPARE_ARRIVALS) + 8)
    if arriving > MAX_ARRIVALS:
        raise BadPlan(
            f"--rate, --duration: {options.rate:g}/s for {options.duration_s:g} s are more than {MAX_ARRIVALS} requests;"
            " lower one of them, or give --requests",
            field="rate",
        )
    return arriving * (options.shape.turns if options.workload in ("rag", "multi-turn") else 1)
