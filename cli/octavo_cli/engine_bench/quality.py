"""`octavo bench quality`: what each precision costs in perplexity on a fixed text, against the float32 oracle."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass

from octavo.errors import OctavoError
from octavo.figures import Figure, Figures
from octavo.rpc.settings import Settings

from octavo_cli.bench.work import BadPlan
from octavo_cli.engine_bench.child import Child
from octavo_cli.engine_bench.engine import given_flags

ORACLE = ("f32", "auto")
FORMS = {"bf16": ("bf16", "auto"), "int8": ("int8", "auto"), "int4": ("int4", "auto"), "bf16/kv-int8": ("bf16", "int8")}
"""Name -> weights and KV dtype."""
BOUNDS = {"bf16": 0.002, "int8": 0.005, "int4": 0.03, "bf16/kv-int8": 0.005}
"""How far the perplexity may lie from the oracle's, as a share."""
_TOKENIZE = """
import json, sys
from importlib.resources import files
from octavo.artifacts import resolve_model
from octavo_gateway.tokenizer_files import load_tokenizer
text = files("octavo_gpuworker.bench").joinpath("prose.txt").read_text(encoding="utf-8")
print(json.dumps(load_tokenizer(resolve_model(sys.argv[1])).encode(text)))
"""


@dataclass(frozen=True, slots=True)
class Scored:
    """One precision's answers over the text."""

    nll: list[float]
    top: list[int]
    backend: str

    @property
    def perplexity(self) -> float:
        return math.exp(sum(self.nll) / len(self.nll))


def prose_ids(model_ref: str) -> list[int]:
    """The shipped text as the model's tokens, by the gateway's own tokenizer. Raises OctavoError when it cannot be asked."""
    done = subprocess.run([sys.executable, "-c", _TOKENIZE, model_ref], capture_output=True, text=True, timeout=120)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise OctavoError(f"the gateway's tokenizer cannot be asked: {said[-1] if said else done.returncode}")
    return [int(token) for token in json.loads(done.stdout)]


def measure_quality(settings: Settings, forms: list[str], tokens: int) -> tuple[Figures, list[str]]:
    """Scores the first `tokens` tokens (0: all) in the oracle's precision and in each of `forms`. Raises BadPlan for a form, OctavoError."""
    unknown = [name for name in forms if name not in FORMS]
    if unknown:
        raise BadPlan(f"--forms: {unknown[0]!r} is unknown; choose from {', '.join(FORMS)}", field="forms")
    ids = prose_ids(settings.manifest.model.ref)
    ids = ids[:tokens] if tokens else ids
    with Child.of_module("the bare engine", "octavo_gpuworker.bench", given_flags(settings)) as engine:
        scored = {name: _score(engine, name, form, ids) for name, form in {"oracle": ORACLE, **_chosen(forms)}.items()}
    return figures_of(scored, len(ids))


def figures_of(scored: dict[str, Scored], tokens: int) -> tuple[Figures, list[str]]:
    """Perplexities, their distance from the oracle's and how often both hold the same token for the likeliest."""
    oracle = scored["oracle"]
    results = [Figure("perplexity/f32", oracle.perplexity, "perplexity", n=len(oracle.nll))]
    notes = []
    for name, found in scored.items():
        if name == "oracle":
            continue
        off = found.perplexity / oracle.perplexity - 1
        same = sum(a == b for a, b in zip(found.top, oracle.top, strict=True)) / len(found.top)
        results += [
            Figure(f"perplexity/{name}", found.perplexity, "perplexity", n=len(found.nll)),
            Figure(f"perplexity_over_f32/{name}", 1 + off, "ratio", n=len(found.nll)),
            Figure(f"top1_agreement/{name}", same, "ratio", n=len(found.top)),
        ]
        verdict = "within" if abs(off) <= BOUNDS[name] else "BEYOND"
        notes.append(f"{name}: perplexity {off:+.3%} of the oracle's, {verdict} {BOUNDS[name]:.1%}")
    backends = {f"backend/{name}": found.backend for name, found in scored.items()}
    return Figures("quality", tuple(results), {"tokens": tokens, **backends}), notes


def _chosen(forms: list[str]) -> dict[str, tuple[str, str]]:
    return {name: FORMS[name] for name in forms}


def _score(engine: Child, name: str, form: tuple[str, str], ids: list[int]) -> Scored:
    print(f"octavo: scoring {len(ids)} tokens: {name}", file=sys.stderr)
    answer = engine.ask(do="quality", weights=form[0], kv_dtype=form[1], ids=ids)
    return Scored(answer["nll"], answer["top"], answer["backend"])
