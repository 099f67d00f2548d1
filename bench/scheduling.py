"""What the scheduler's policies do, one row of docs/scheduling.md per command.

    python bench/scheduling.py chunking [--live] [--hardware this-cpu] [--json FILE]
    python bench/scheduling.py flood [--live] ...
    python bench/scheduling.py policies ...

Without --live in simulated time (the scheduler's own core, simulated workers); with it on a local cluster of one worker,
where the same requests are sent at the same times. Everything that is compared runs in one call.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))

from cluster import Cluster
from octavo.client import AsyncClient, RetryPolicy
from octavo.figures import Figure, Figures, quantile, write_figures
from octavo_scheduler.policies.pace import HEADROOM
from octavo_scheduler.policy import Policy
from octavo_scheduler.simulate.fleet_run import Plan, run_fleet
from octavo_scheduler.simulate.hardware import Hardware, given_models
from octavo_scheduler.simulate.summary import summarise
from octavo_scheduler.simulate.workload import Row

POLICIES = ("fcfs", "priority", "sjf", "slo", "fair", "slo-fair")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a scene. `group` is what its latencies are counted under."""

    group: str
    at_s: float
    prompt: int
    output: int
    tenant: str = "default"
    slo_class: str = ""
    priority: int = 0


@dataclass(slots=True)
class Heard:
    """What clients saw, by group: milliseconds."""

    ttft_ms: dict[str, list[float]] = field(default_factory=dict)
    gaps_ms: list[float] = field(default_factory=list)
    failed: int = 0

    def p(self, group: str, share: float) -> float:
        return quantile(self.ttft_ms[group], share)


# -- how a scene is run ------------------------------------------------------------------------------------------------


def simulated(asks: Sequence[Ask], hardware: Hardware, policy: Policy) -> Heard:
    ordered = sorted(asks, key=lambda ask: ask.at_s)
    rows = [
        Row(int(ask.at_s * 1e6), ((str(number), ask.prompt),), ask.output, 0, ask.tenant, ask.slo_class, ask.priority)
        for number, ask in enumerate(ordered)
    ]
    (result,) = run_fleet(Plan(hardware, policy, 1), rows)
    heard = Heard()
    for tally in result.tallies:
        heard.failed += tally.outcome != "finished"
        if tally.ttft_us >= 0:
            heard.ttft_ms.setdefault(ordered[tally.number].group, []).append(tally.ttft_us / 1000)
    unit_ms = 0.01
    heard.gaps_ms = [gap * unit_ms for gap, count in sorted(result.gaps.items()) for _ in range(count)]
    return heard


async def sent(asks: Sequence[Ask], address: str, keys: Mapping[str, str], listened: str) -> Heard:
    """Open loop: every request leaves at its time, whatever became of the others; gaps are those of group `listened`."""
    heard = Heard()
    draw = Random(5)
    clients = {
        tenant: AsyncClient(
            f"grpc://{address}", api_key=keys.get(tenant, ""), retry=RetryPolicy(max_attempts=1, resume_window_s=0)
        )
        for tenant in {ask.tenant for ask in asks}
    }
    began_s = time.monotonic()

    async def one(ask: Ask, tokens: list[int]) -> None:
        await asyncio.sleep(max(0.0, began_s + ask.at_s - time.monotonic()))
        arrivals: list[float] = []
        asked_s = time.monotonic()
        try:
            stream = clients[ask.tenant].generate_stream(
                tokens,
                max_tokens=ask.output,
                temperature=0.0,
                ignore_eos=True,
                cache_off=True,
                slo_class=ask.slo_class,
                priority=ask.priority,
            )
            async with stream:
                async for chunk in stream:
                    if chunk.token_ids:
                        arrivals.append(time.monotonic())
        except Exception as error:  # noqa: BLE001 (a bench counts what failed, and shows the first)
            heard.failed += 1
            print(f"{ask.group}: {error}", file=sys.stderr)
        if arrivals:
            heard.ttft_ms.setdefault(ask.group, []).append((arrivals[0] - asked_s) * 1000)
        if ask.group == listened:
            heard.gaps_ms += [(b - a) * 1000 for a, b in itertools.pairwise(arrivals)]

    try:
        async with asyncio.TaskGroup() as group:
            for ask in asks:
                group.create_task(one(ask, [draw.randrange(1000, 40_000) for _ in range(ask.prompt)]))
    finally:
        for client in clients.values():
            await client.aclose()
    return heard


Run = Callable[[Mapping[str, Sequence[Ask]], Policy, str], dict[str, Heard]]
"""(scenes, policy, group whose gaps are listened to) -> what was heard of each."""


@dataclass(slots=True)
class Live:
    """Runs scenes on a cluster of one worker, started anew with each policy."""

    folder: Path
    started: int = 0

    def __call__(self, scenes: Mapping[str, Sequence[Ask]], policy: Policy, listened: str) -> dict[str, Heard]:
        return asyncio.run(self._run(scenes, policy, listened))

    async def _run(self, scenes: Mapping[str, Sequence[Ask]], policy: Policy, listened: str) -> dict[str, Heard]:
        self.started += 1
        tenants = sorted({ask.tenant for asks in scenes.values() for ask in asks})
        keys = {tenant: f"key-{tenant}" for tenant in tenants}
        cluster = Cluster(
            self.folder / str(self.started),
            kvstore=False,
            settings={
                "engine.threads": 1,  # client, gateway and scheduler have the other cores
                "scheduler.worker_silence_s": 120.0,  # a whole prompt in one step is silent for as long as it takes
                "scheduler.policy": policy.order,
                "scheduler.counterfactual_share": policy.counterfactual_share,
                "scheduler.max_num_seqs": policy.max_num_seqs,
                "scheduler.max_num_batched_tokens": policy.max_num_batched_tokens,
                "scheduler.slo_classes": {name: dict(slo) for name, slo in policy.slo_classes.items()},
                "tenants.keys": {key: tenant for tenant, key in keys.items()},
            },
        )
        heard = {}
        try:
            await cluster.up()
            warm = [replace(ask, at_s=0.0, output=2) for asks in scenes.values() for ask in asks[:1]]
            await sent(warm, cluster.grpc_address, keys, "")
            for name, asks in scenes.items():
                heard[name] = await sent(asks, cluster.grpc_address, keys, listened)
                await cluster.settle()
        finally:
            cluster.down()
        return heard


def probed(live: Live) -> Hardware:
    """The live worker's step time, so that a scene loads it as it loads a simulated one: one stream, eight, one prompt."""
    scenes = {
        "one": [Ask("stream", 0.0, STREAM_PROMPT, 40)],
        "eight": [Ask("stream", 0.0, STREAM_PROMPT, 40) for _ in range(8)],
        "prompt": [Ask("prompt", 0.0, PROMPT, 1)],
    }
    heard = live(
        scenes, Policy(max_num_batched_tokens=2 * PROMPT, max_num_seqs=16, slo_classes={"default": {}}), "stream"
    )
    one_us, eight_us = (1000 * quantile(heard[name].gaps_ms, 0.5) for name in ("one", "eight"))
    decode_us = max(1.0, (eight_us - one_us) / 7)
    fixed_us = max(1.0, one_us - decode_us)
    prefill_us = max(1.0, 1000 * heard["prompt"].p("prompt", 0.5) - fixed_us) / PROMPT
    print(f"live worker: fixed {fixed_us:.0f}, decode {decode_us:.0f}, prefill {prefill_us:.1f} us")
    return replace(
        given_models()["this-cpu"],
        name="live",
        fixed_us=fixed_us,
        decode_seq_us=decode_us,
        prefill_token_us=prefill_us,
        context_token_us=0.0,
    )


# -- chunking: running streams while long prompts arrive ---------------------------------------------------------------

STREAMS, STREAM_PROMPT, PROMPT = 8, 32, 2048
SMOOTH = 2.5
"""What the streams' class asks for: gaps of so many times their own, alone."""


def chunking_scenes(alone_ms: float, prefill_ms: float, count: int) -> dict[str, list[Ask]]:
    """8 streams for as long as the prompts take to come and go, and the same streams alone."""
    spacing_s = 1.5 * prefill_ms / 1000
    begin_s = 20 * alone_ms / 1000
    # as many as are said between whole prompts: their stalls are then no rare gaps, and chunked ones fill the time
    tokens = int((begin_s + count * (spacing_s - prefill_ms / 1000)) * 1000 / alone_ms)
    streams = [Ask("stream", 0.0, STREAM_PROMPT, tokens, slo_class="stream") for _ in range(STREAMS)]
    prompts = [Ask("prompt", begin_s + number * spacing_s, PROMPT, 1) for number in range(count)]
    return {"alone": [replace(item, output=min(tokens, 100)) for item in streams], "with": [*streams, *prompts]}


def chunking(arguments: argparse.Namespace, hardware: Hardware, live: Run | None) -> list[Figure]:
    run = live or in_simulated_time(hardware)
    alone_ms = hardware.step_us(0, STREAMS, STREAMS * 100) / 1000
    scenes = chunking_scenes(alone_ms, hardware.step_us(PROMPT, 0, PROMPT) / 1000, arguments.prompts)
    # without trials: one whole prompt among so few would be measured as chunking
    whole = Policy(
        max_num_batched_tokens=2 * PROMPT,
        max_num_seqs=16,
        slo_classes={"default": {}, "stream": {}},
        counterfactual_share=0.0,
    )
    without = run(scenes, whole, "stream")
    own_ms = quantile(without["alone"].gaps_ms, 0.5)
    classes: dict[str, dict[str, float | str]] = {"default": {}, "stream": {"itl_p99_ms": round(SMOOTH * own_ms, 2)}}
    chunked = run({"with": scenes["with"]}, replace(whole, max_num_batched_tokens=512, slo_classes=classes), "stream")
    figures = []
    for name, heard in (("whole", without["with"]), ("chunked", chunked["with"])):
        p50, p99 = (quantile(heard.gaps_ms, share) for share in (0.5, 0.99))
        figures += [
            Figure(f"itl_p50/{name}", p50, "ms", len(heard.gaps_ms)),
            Figure(f"itl_p99/{name}", p99, "ms", len(heard.gaps_ms)),
            Figure(f"itl_max/{name}", max(heard.gaps_ms), "ms", len(heard.gaps_ms)),
            Figure(f"itl_p99_over_p50/{name}", p99 / p50, "ratio"),
            Figure(f"itl_p99_over_p50_alone/{name}", p99 / own_ms, "ratio"),
            Figure(f"prompt_ttft_p50/{name}", heard.p("prompt", 0.5), "ms", arguments.prompts),
        ]
    p99_of = {item.name: item.value for item in figures}
    figures.append(Figure("itl_p50/alone", own_ms, "ms", len(without["alone"].gaps_ms)))
    figures.append(Figure("itl_p99/chunked_over_whole", p99_of["itl_p99/chunked"] / p99_of["itl_p99/whole"], "ratio"))
    return figures


# -- flood: two tenants ------------------------------------------------------------------------------------------------

FLOOD_PROMPT, FLOOD_OUTPUT, SMALL_PROMPT, SMALL_OUTPUT = 256, 32, 256, 16
FLOOD_SEQS = 8


def flood_scenes(hardware: Hardware, small: int, seed: int) -> dict[str, list[Ask]]:
    """One tenant asks now and then; alone, beside as many decodes as fit and no queue, and beside another's flood."""
    draw = Random(seed)
    step_s = hardware.step_us(0, FLOOD_SEQS, FLOOD_SEQS * (FLOOD_PROMPT + FLOOD_OUTPUT)) / 1e6
    one_s = hardware.step_us(FLOOD_PROMPT, 0, FLOOD_PROMPT) / 1e6 + FLOOD_OUTPUT * step_s / FLOOD_SEQS
    gap_s = 8 * hardware.step_us(SMALL_PROMPT, 0, SMALL_PROMPT) / 1e6
    asks, at_s = [Ask("before", 0.0, SMALL_PROMPT, SMALL_OUTPUT, "small")], 4 * one_s
    for _ in range(small):
        at_s += draw.uniform(0.5, 1.5) * gap_s
        asks.append(Ask("small", at_s, SMALL_PROMPT, SMALL_OUTPUT, "small"))
    count = int(2.0 * at_s / one_s)  # twice what the worker can do
    flood = [Ask("flood", at_s * number / count, FLOOD_PROMPT, FLOOD_OUTPUT, "flood") for number in range(count)]
    tokens = int(1.3 * at_s / step_s)
    streams = [Ask("stream", 0.0, FLOOD_PROMPT, tokens, "flood") for _ in range(FLOOD_SEQS * 3 // 4)]
    return {"alone": asks, "decodes": [*streams, *asks], "flood": sorted([*flood, *asks], key=lambda ask: ask.at_s)}


def flood(arguments: argparse.Namespace, hardware: Hardware, live: Run | None) -> list[Figure]:
    run = live or in_simulated_time(hardware)
    scenes = flood_scenes(hardware, arguments.small, arguments.seed)
    # the class of both: gaps of nine tenths of what such a prompt takes alone, so that no step holds all of one
    itl_ms = round(0.9 * hardware.step_us(SMALL_PROMPT, 0, SMALL_PROMPT) / 1000, 1)
    classes: dict[str, dict[str, float | str]] = {"default": {"ttft_ms": 1000.0, "itl_p99_ms": itl_ms}}
    policy = Policy(order="fair", max_num_seqs=FLOOD_SEQS, slo_classes=classes, max_waiting_requests=10**6)
    fair = run(scenes, policy, "")
    fcfs = run({"flood": scenes["flood"]}, replace(policy, order="fcfs"), "")
    step_ms = HEADROOM * itl_ms  # what the target leaves a step
    found = {"alone": fair["alone"], "decodes": fair["decodes"], "fair": fair["flood"], "fcfs": fcfs["flood"]}
    figures = [
        Figure(f"small_ttft_{word}/{name}", heard.p("small", share), "ms", len(heard.ttft_ms["small"]))
        for name, heard in found.items()
        for share, word in ((0.5, "p50"), (0.95, "p95"))
    ]
    p95 = {name: heard.p("small", 0.95) for name, heard in found.items()}
    figures += [
        Figure("step", step_ms, "ms"),
        Figure("small_ttft_p95/fair_over_2_alone_and_a_step", p95["fair"] / (2 * p95["alone"] + step_ms), "ratio"),
        Figure("small_ttft_p95/fair_over_decodes", p95["fair"] / p95["decodes"], "ratio"),
        Figure("small_ttft_p95/fcfs_over_alone", p95["fcfs"] / p95["alone"], "ratio"),
        Figure("flood_ttft_p50/fair", found["fair"].p("flood", 0.5), "ms"),
        Figure("flood_ttft_p50/fcfs", found["fcfs"].p("flood", 0.5), "ms"),
    ]
    return figures


# -- policies: one trace under each ------------------------------------------------------------------------------------

CLASSES: Mapping[str, Mapping[str, float | str]] = {
    "default": {"ttft_ms": 500.0, "itl_p99_ms": 50.0},
    "patient": {"ttft_ms": 5000.0, "itl_p99_ms": 200.0},
}


def mixed_trace(seed: int, requests: int, rate: float) -> list[Row]:
    """Three tenants, one of which sends two thirds; short and long prompts; two classes; one in ten urgent."""
    draw, at_s, rows = Random(seed), 0.0, []
    for number in range(requests):
        at_s += draw.expovariate(rate)
        long = draw.random() < 0.15
        prompt = draw.randint(4000, 8000) if long else draw.randint(100, 800)
        rows.append(
            Row(
                int(at_s * 1e6),
                ((str(number), prompt),),
                draw.randint(20, 300),
                512,
                draw.choices(("flood", "a", "b"), (4, 1, 1))[0],
                "patient" if long or draw.random() < 0.2 else "default",
                int(draw.random() < 0.1),
            )
        )
    return rows


def policies(arguments: argparse.Namespace, hardware: Hardware, live: Run | None) -> list[Figure]:
    figures = []
    for rate in arguments.rates:
        rows = mixed_trace(arguments.seed, arguments.requests, rate)
        for order in POLICIES:
            policy = Policy(
                order=order, max_num_seqs=64, slo_classes=CLASSES, max_waiting_requests=10**6,
                max_waiting_prompt_tokens=10**12,
            )  # fmt: skip
            plan = Plan(hardware, policy, 1)
            results = run_fleet(plan, rows)
            found = {item.name: item for item in summarise(plan, results).figures}
            for name in ("slo_attainment", "slo_attainment/default", "ttft_p50", "ttft_p99", "max_service_gap"):
                figures.append(replace(found[name], name=f"{name}/r{rate:g}/{order}"))
            small = [item.ttft_us / 1000 for item in results[0].tallies if item.row.tenant != "flood"]
            figures.append(Figure(f"ttft_p95_of_others/r{rate:g}/{order}", quantile(small, 0.95), "ms", len(small)))
    return figures


# -- the command -------------------------------------------------------------------------------------------------------


def in_simulated_time(hardware: Hardware) -> Run:
    """Gaps are pooled there: those who are not listened to say one token in scenes where gaps count."""

    def run(scenes: Mapping[str, Sequence[Ask]], policy: Policy, listened: str) -> dict[str, Heard]:
        return {name: simulated(asks, hardware, policy) for name, asks in scenes.items()}

    return run


ROWS = {"chunking": chunking, "flood": flood, "policies": policies}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--live", action="store_true", help="on a local cluster instead of in simulated time")
    parser.add_argument("--hardware", default="", choices=("", *given_models()), help="of the simulation")
    parser.add_argument("--prompts", type=int, default=6, help="long prompts of `chunking`")
    parser.add_argument(
        "--small", type=int, default=0, help="requests of the small tenant in `flood`; 0: 12 live, 60 else"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=2000, help="of the trace of `policies`")
    parser.add_argument("--rates", type=float, nargs="+", default=[8.0, 14.0], help="of `policies`, requests/s")
    parser.add_argument("--json", default="", help="write the figures to this file")
    arguments = parser.parse_args(argv)
    if arguments.live and arguments.row == "policies":
        parser.error("--live: policies is a simulation; use chunking or flood")
    arguments.small = arguments.small or (12 if arguments.live else 60)
    name = arguments.hardware or ("h200-8b" if arguments.row == "policies" else "this-cpu")
    with tempfile.TemporaryDirectory(prefix="octavo-scheduling-") as folder:
        run = Live(Path(folder)) if arguments.live else None
        hardware = probed(run) if run is not None else given_models()[name]
        figures = ROWS[arguments.row](arguments, hardware, run)
    for item in figures:
        print(f"{item.name:52} {item.value:12.3f} {item.unit}")
    if arguments.json:
        config = {"row": arguments.row, "live": arguments.live, "hardware": name, "seed": arguments.seed}
        write_figures(Path(arguments.json), Figures("scheduling", tuple(figures), config))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
