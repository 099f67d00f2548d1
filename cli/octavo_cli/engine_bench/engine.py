"""The measurement of `octavo bench engine`: rows of the bare engine, peers in turn with them, and the way through the services."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args, get_type_hints

from octavo.figures import Figure, Figures
from octavo.manifest import Engine
from octavo.rpc.settings import Settings, to_flags

from octavo_cli.bench.work import BadPlan
from octavo_cli.engine_bench.child import Child
from octavo_cli.engine_bench.first_token import FirstTokens, first_token_figures, first_tokens
from octavo_cli.engine_bench.pairs import take_turns, together, with_twins
from octavo_cli.engine_bench.peers import Peer, start_peers
from octavo_cli.engine_bench.report import Sample, engine_figures, floor_notes, ratio_figure, service_figures
from octavo_cli.engine_bench.services import Pass, Workload, running_services

ROWS = (
    "prefill/bf16/512", "prefill/int8/512", "decode/bf16/b1", "decode/int8/b1", "decode/int4/b1", "decode/bf16/b16",
    "decode/int8/b16", "decode/int8/b16/kv-int8", "decode/bf16/b32", "decode/bf16/b16/sampled", "decode/bf16/b1/ctx4096",
)  # fmt: skip
SERVICES = Workload(streams=16, prompt_tokens=128, output_tokens=128)
MULTIPLEXED, PLAIN = "multiplexed", "plain"
WAYS = (MULTIPLEXED, PLAIN)
"""How a client's requests travel: on one stream, as the SDK has it by default, or on a stream each."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What is measured, and how often; `steps` is decode steps per sample."""

    rows: tuple[str, ...] = ROWS
    rounds: int = 5
    steps: int = 24
    peers: bool = True
    """llama.cpp, where it is found."""
    commands: dict[str, list[str]] = field(default_factory=dict)
    """Other peers: name -> command (see peers.py)."""
    services: tuple[str, ...] = ("bf16", "int8")
    """Weights with which the way through the services is measured; none: it is left out."""
    compare_calls: bool = False
    """Through the services also with a stream per request, in turn with the SDK's own way."""


@dataclass(slots=True)
class Found:
    """Samples per row name, passes per weights and way of calling, and what there is to say beside the figures."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    turns: dict[str, list[tuple[Sample, Sample]]] = field(default_factory=dict)
    """Of a row that draws: samples of its greedy twin and of its own that followed each other."""
    passes: dict[tuple[str, str], list[Pass]] = field(default_factory=dict)
    first_tokens: dict[str, list[FirstTokens]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, sample: Sample) -> None:
        self.samples.setdefault(name, []).append(sample)


def measure_engine(settings: Settings, plan: EnginePlan) -> tuple[Figures, list[str]]:
    """Every round measures each row once (a drawn one and its greedy twin in turns), ours and the peers' in turn. Raises BadPlan for a row's name, OctavoError when one cannot run."""
    flags = given_flags(settings)
    found = Found()
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(Child.of_module("the bare engine", "octavo_gpuworker.bench", flags))
        _check_names(engine, plan.rows)
        peers = start_peers(settings, plan.peers, plan.commands, stack, found.facts)
        for number in range(plan.rounds + 1):  # the first round warms up
            for rows in with_twins(plan.rows):
                _ours(found, engine, rows, plan.steps, keep=number > 0)
                for row, peer in itertools.product(rows, peers):
                    answer = peer.measure(row, plan.steps)
                    if number and answer is not None:
                        found.add(f"peer/{peer.name}/{row}", answer)
        for weights in plan.services:
            _through_services(found, engine, weights, flags, plan)
    found.notes += [f"peer {peer.name} has no {row}: {why}" for peer in peers for row, why in peer.skipped.items()]
    results = figures_of(found, peers)
    config = {"rounds": plan.rounds, "steps": plan.steps, "loop": "closed", "calls": MULTIPLEXED, **found.facts}
    return Figures("engine", tuple(results), config), [*found.notes, *floor_notes(results)]


def given_flags(settings: Settings) -> list[str]:
    """Every setting that was given, as flags for a process that does not look at our environment."""
    return to_flags({item.key: item.value for item in settings.items() if item.source != "default"})


def _ours(found: Found, engine: Child, rows: tuple[str, ...], steps: int, *, keep: bool) -> None:
    """A row, or a pair of them in turns."""

    def measure(row: str, steps: int) -> Sample:
        answer = engine.ask(do="row", row=row, steps=steps)
        found.facts[f"backend/{row}"] = answer["backend"]
        return answer

    if len(rows) == 1:
        samples = [measure(rows[0], steps)]
    else:
        turns = take_turns(measure, rows, steps)
        samples = [together(turn) for turn in turns]
        if keep:
            found.turns.setdefault(rows[1], []).extend(zip(*turns, strict=True))
    for row, sample in zip(rows, samples, strict=True):
        if keep:
            found.add(row, sample)


def _through_services(found: Found, engine: Child, weights: str, flags: Sequence[str], plan: EnginePlan) -> None:
    """The same prompts and outputs by the bare engine and through the services, in turn."""
    row = f"run/{weights}/b{SERVICES.streams}/ctx{SERVICES.prompt_tokens}"
    print(f"octavo: starting a cluster with {weights} weights", file=sys.stderr)
    with contextlib.ExitStack() as stack:
        services = stack.enter_context(running_services([*flags, "--engine.weights", weights]))
        client = stack.enter_context(
            Child.of_module("the client", "octavo_cli.engine_bench.client_child", [services.url])
        )
        found.facts[f"services/{weights}/start_s"] = f"{services.ready_s:.2f}"
        for number in range(plan.rounds + 1):
            answer = engine.ask(do="row", row=row, steps=SERVICES.output_tokens)
            if number:
                found.add(row, answer)
            for way in WAYS if plan.compare_calls else WAYS[:1]:
                passed = services.run(SERVICES, multiplex=way == MULTIPLEXED)
                if number:
                    found.passes.setdefault((weights, way), []).append(passed)
            alone = first_tokens(engine, client, weights, number)
            if number:
                found.first_tokens.setdefault(weights, []).append(alone)
        found.facts[f"services/{weights}/worker_pss_mb"] = f"{services.worker_pss_bytes() / 1e6:.0f}"


def figures_of(found: Found, peers: Sequence[Peer]) -> list[Figure]:
    """The rows of everything that was found."""
    results: list[Figure] = []
    for name, samples in found.samples.items():
        results += engine_figures(name, samples)
        for peer in peers:
            if name.startswith(f"peer/{peer.name}/"):
                ours = name.removeprefix(f"peer/{peer.name}/")
                results.append(ratio_figure(f"over/{peer.name}/{ours}", found.samples[ours], samples))
        if name in found.turns:
            greedy, drawn = zip(*found.turns[name], strict=True)
            results.append(ratio_figure(f"over/greedy/{name}", drawn, greedy))
    for (weights, way), passes in found.passes.items():
        row = f"run/{weights}/b{SERVICES.streams}/ctx{SERVICES.prompt_tokens}"
        point = f"services/{weights}/c16" if way == MULTIPLEXED else f"services/{weights}/c16/{way}"
        results += service_figures(point, passes, found.samples[row], len(os.sched_getaffinity(0)))
    for weights, rounds in found.first_tokens.items():
        results += first_token_figures(f"services/{weights}/c1", rounds)
    return results


def check_rows(rows: Sequence[str]) -> tuple[str, ...]:
    """The rows that were asked for, spaces and empty ones aside. Raises BadPlan when none is left."""
    named = tuple(dict.fromkeys(row.strip() for row in rows if row.strip()))
    if not named:
        raise BadPlan("--rows: none given; name some like decode/bf16/b1,prefill/bf16/512", field="rows")
    return named


def check_services(forms: str) -> tuple[str, ...]:
    """The forms of weights in a list with commas; `none`: no form. Raises BadPlan for one that engine.weights does not know."""
    named = tuple(dict.fromkeys(form.strip() for form in forms.split(",") if form.strip() not in ("", "none")))
    known = get_args(get_type_hints(Engine)["weights"])
    for form in named:
        if form not in known:
            raise BadPlan(
                f"--services: {form!r} is no form of weights; use {', '.join(known)}, or none", field="services"
            )
    return named


def _check_names(engine: Child, rows: Sequence[str]) -> None:
    """Before a model is opened or a peer started. Raises BadPlan with what the engine says of the first bad name."""
    for row in rows:
        if fault := engine.ask(do="check", row=row)["fault"]:
            raise BadPlan(f"--rows: {fault}", field="rows")
