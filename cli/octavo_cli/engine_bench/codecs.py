"""`octavo bench quality --codecs`: what each codec of the KV store costs in perplexity, and what it gains in bytes.

Every full block goes through the codec before later positions attend to it, and what those compute goes through it
too: a request whose whole prefix came out of a compressed tier, at every block boundary. That is the worst case.
"""

from __future__ import annotations

import sys
from typing import Any

from octavo.figures import Figure, Figures
from octavo.rpc.settings import Settings

from octavo_cli.bench.work import BadPlan
from octavo_cli.engine_bench.child import Child
from octavo_cli.engine_bench.engine import given_flags
from octavo_cli.engine_bench.quality import Scored, prose_ids

CODECS = ("int8", "fp8", "zstd8", "zstd7", "zstd6", "zstd-exact")
"""Forms of octavo_kvstore/codecs/forms.py; zstd8, zstd7, zstd6 are the levels of cache.codec zstd."""
BOUNDS = {"int8": 0.005, "fp8": 0.01, "zstd8": 0.005, "zstd7": 0.01, "zstd6": 0.03, "zstd-exact": 0.0}
"""How far the perplexity may lie from that without a codec, as a share."""
WEIGHTS, KV_DTYPE = "bf16", "auto"


def measure_codecs(settings: Settings, codecs: list[str], tokens: int) -> tuple[Figures, list[str]]:
    """Scores the first `tokens` tokens (0: all) without a codec and through each. Raises BadPlan for a codec, OctavoError."""
    unknown = [name for name in codecs if name not in CODECS]
    if unknown:
        raise BadPlan(f"--codecs: {unknown[0]!r} is unknown; choose from {', '.join(CODECS)}", field="codecs")
    ids = prose_ids(settings.manifest.model.ref)
    ids = ids[:tokens] if tokens else ids
    with Child.of_module("the bare engine", "octavo_gpuworker.bench", given_flags(settings)) as engine:
        answers = {name: _ask(engine, name, ids) for name in ("plain", *codecs)}
    return codec_figures(answers, len(ids))


def codec_figures(answers: dict[str, dict[str, Any]], tokens: int) -> tuple[Figures, list[str]]:
    """Perplexity, its distance from `plain`, ratio and speeds of each codec; the speeds in MB/s of plain bytes."""
    scored = {name: Scored(item["nll"], item["top"], item["backend"]) for name, item in answers.items()}
    plain = scored["plain"]
    count = len(plain.nll)
    results = [Figure("perplexity/plain", plain.perplexity, "perplexity", n=count)]
    notes = []
    for name in (name for name in scored if name != "plain"):
        found, codec = scored[name], answers[name]["codec"]
        off = found.perplexity / plain.perplexity - 1
        same = sum(a == b for a, b in zip(found.top, plain.top, strict=True)) / count
        encode, decode = codec["encode_bytes_per_s"] / 1e6, codec["decode_bytes_per_s"] / 1e6
        results += [
            Figure(f"perplexity/codec/{name}", found.perplexity, "perplexity", n=count),
            Figure(f"perplexity_over_plain/codec/{name}", 1 + off, "ratio", n=count),
            Figure(f"top1_agreement/codec/{name}", same, "ratio", n=count),
            Figure(f"ratio/codec/{name}", codec["ratio"], "ratio", n=codec["payloads"]),
            Figure(f"encode/codec/{name}", encode, "MB/s", n=codec["payloads"]),
            Figure(f"decode/codec/{name}", decode, "MB/s", n=codec["payloads"]),
        ]
        verdict = "within" if abs(off) <= BOUNDS[name] else "BEYOND"
        notes.append(
            f"{name}: perplexity {off:+.3%}, {verdict} {BOUNDS[name]:.1%}; same first token {same:.2%}; "
            f"{codec['ratio']:.2f}x smaller, encode {encode:.0f} MB/s, decode {decode:.0f} MB/s"
        )
    return Figures("quality", tuple(results), {"tokens": tokens, "backend": plain.backend}), notes


def _ask(engine: Child, name: str, ids: list[int]) -> dict[str, Any]:
    print(f"octavo: scoring {len(ids)} tokens: {name}", file=sys.stderr)
    through = [] if name == "plain" else [sys.executable, "-m", "octavo_kvstore.codecs", name]
    return engine.ask(do="quality", weights=WEIGHTS, kv_dtype=KV_DTYPE, ids=ids, through=through)
