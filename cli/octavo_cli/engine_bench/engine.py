"""The measurement of `octavo bench engine`: rows of the bare engine, peers in turn with them, and the way through the services."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.artifacts import resolve_model
from octavo.errors import OctavoError
from octavo.figures import Figure, Figures
from octavo.rpc.settings import Settings, to_flags

from octavo_cli.engine_bench.child import Child
from octavo_cli.engine_bench.report import Sample, engine_figures, floor_notes, ratio_figure, service_figures
from octavo_cli.engine_bench.services import Pass, Workload, running_services

ROWS = (
    "prefill/bf16/512", "prefill/int8/512", "decode/bf16/b1", "decode/int8/b1", "decode/int4/b1", "decode/bf16/b16",
    "decode/int8/b16", "decode/int8/b16/kv-int8", "decode/bf16/b32", "decode/bf16/b16/sampled", "decode/bf16/b1/ctx4096",
)  # fmt: skip
PEERS_OF = {"prefill": ("bf16", "int8"), "decode": ("bf16", "int8", "int4")}
SERVICES = Workload(streams=16, prompt_tokens=128, output_tokens=128)


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What is measured, and how often; `steps` is decode steps per sample."""

    rows: tuple[str, ...] = ROWS
    rounds: int = 5
    steps: int = 24
    peers: bool = True
    services: tuple[str, ...] = ("bf16",)
    """Weights with which the way through the services is measured; none: it is left out."""


@dataclass(slots=True)
class Found:
    """Samples per row name, passes per weights, and what there is to say beside the figures."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    passes: dict[str, list[Pass]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, sample: Sample) -> None:
        self.samples.setdefault(name, []).append(sample)


def measure_engine(settings: Settings, plan: EnginePlan) -> tuple[Figures, list[str]]:
    """Every round measures each row once, ours and the peer's in turn. Raises OctavoError when a row cannot run."""
    flags = given_flags(settings)
    found = Found()
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(Child("the bare engine", "octavo_gpuworker.bench", flags))
        peer = _llamacpp(settings, found) if plan.peers else None
        if peer is not None:
            stack.enter_context(peer)
        for number in range(plan.rounds + 1):  # the first round warms up
            for row in plan.rows:
                _one(found, engine, row, plan.steps, keep=number > 0)
                if peer is not None and _has_peer(row):
                    answer = peer.ask(do="row", row=row, steps=plan.steps)
                    if number:
                        found.add(f"peer/llamacpp/{row}", answer)
        for weights in plan.services:
            _through_services(found, engine, weights, flags, plan.rounds)
    results = _figures(found, plan)
    config = {"rounds": plan.rounds, "steps": plan.steps, "loop": "closed", **found.facts}
    return Figures("engine", tuple(results), config), [*found.notes, *floor_notes(results)]


def given_flags(settings: Settings) -> list[str]:
    """Every setting that was given, as flags for a process that does not look at our environment."""
    return to_flags({item.key: item.value for item in settings.items() if item.source != "default"})


def _one(found: Found, engine: Child, row: str, steps: int, *, keep: bool) -> None:
    answer = engine.ask(do="row", row=row, steps=steps)
    found.facts[f"backend/{row}"] = answer["backend"]
    if keep:
        found.add(row, answer)


def _has_peer(row: str) -> bool:
    kind, weights, *extras = row.split("/")
    return weights in PEERS_OF.get(kind, ()) and not {"sampled", "kv-int8"} & set(extras)


def _llamacpp(settings: Settings, found: Found) -> Child | None:
    """llama.cpp through its Python binding, or a note that says why it is absent."""
    if importlib.util.find_spec("llama_cpp") is None:
        reason = "absent: no llama_cpp in this Python (pip install llama-cpp-python); see bench/README.md"
    else:
        files = resolve_model(settings.manifest.model.ref)
        if files.kind == "gguf":
            threads = settings.manifest.engine.threads or len(os.sched_getaffinity(0))
            found.facts["peer/llamacpp"] = "present"
            arguments = [str(files.path), str(threads)]
            return Child("llama.cpp", "octavo_cli.engine_bench.llamacpp_child", arguments)
        reason = f"absent: it reads GGUF, and {files.name} is a folder of safetensors"
    found.facts["peer/llamacpp"] = reason
    found.notes.append(f"peer llamacpp is {reason}")
    return None


def _through_services(found: Found, engine: Child, weights: str, flags: Sequence[str], rounds: int) -> None:
    """The same prompts and outputs by the bare engine and through the services, in turn."""
    row = f"run/{weights}/b{SERVICES.streams}/ctx{SERVICES.prompt_tokens}"
    print(f"octavo: starting a cluster with {weights} weights", file=sys.stderr)
    with running_services([*flags, "--engine.weights", weights]) as services:
        found.facts[f"services/{weights}/start_s"] = f"{services.ready_s:.2f}"
        for number in range(rounds + 1):
            answer = engine.ask(do="row", row=row, steps=SERVICES.output_tokens)
            passed = services.run(SERVICES)
            if number:
                found.add(row, answer)
                found.passes.setdefault(weights, []).append(passed)
        found.facts[f"services/{weights}/worker_pss_mb"] = f"{services.worker_pss_bytes() / 1e6:.0f}"


def _figures(found: Found, plan: EnginePlan) -> list[Figure]:
    results: list[Figure] = []
    for name, samples in found.samples.items():
        results += engine_figures(name, samples)
        if name.startswith("peer/llamacpp/"):
            ours = name.removeprefix("peer/llamacpp/")
            results.append(ratio_figure(f"over/llamacpp/{ours}", found.samples[ours], samples))
        if name.endswith("/sampled") and name.removesuffix("/sampled") in found.samples:
            greedy = found.samples[name.removesuffix("/sampled")]
            results.append(ratio_figure(f"over/greedy/{name}", samples, greedy))
    for weights, passes in found.passes.items():
        row = f"run/{weights}/b{SERVICES.streams}/ctx{SERVICES.prompt_tokens}"
        results += service_figures(weights, passes, found.samples[row], len(os.sched_getaffinity(0)))
    return results


def check_rows(rows: Sequence[str]) -> tuple[str, ...]:
    """The rows that were asked for, spaces and empty ones aside. Raises OctavoError when none is left."""
    named = tuple(row.strip() for row in rows if row.strip())
    if not named:
        raise OctavoError("rows: none given; name some like decode/bf16/b1,prefill/bf16/512")
    return named
