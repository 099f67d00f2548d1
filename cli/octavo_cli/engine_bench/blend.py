"""`octavo bench blend`: what reusing chunks at other positions costs in agreement with a full prefill, and what it saves."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from random import Random
from typing import Any

from octavo.figures import Figure, Figures
from octavo.rpc.settings import Settings

from octavo_cli.bench.work import BadPlan
from octavo_cli.engine_bench.child import Child
from octavo_cli.engine_bench.engine import given_flags
from octavo_cli.engine_bench.quality import prose_ids

MODULE = "octavo_gpuworker.blending"
ASKED_TOKENS = 24
"""A question is the beginning of one of the chunks: to go on, the model must look into it."""


def blend_ratios(text: str) -> list[float]:
    """The shares of `0,0.15,1`. Raises BadPlan."""
    try:
        ratios = [float(word) for word in text.split(",")]
    except ValueError:
        ratios = [-1.0]
    if not all(0 <= ratio <= 1 for ratio in ratios):
        raise BadPlan(f"--ratios: {text!r} must be shares from 0 to 1, as 0,0.15,1", field="ratios")
    return ratios


def blend_cases(ids: Sequence[int], cases: int, chunks: int, tokens: int, seed: int) -> list[dict[str, Any]]:
    """Prompts of `chunks` passages of the text, none of which follows the one before it. Raises BadPlan."""
    passages = [list(ids[at : at + tokens]) for at in range(0, len(ids) - tokens + 1, tokens)]
    if chunks < 1 or tokens <= ASKED_TOKENS or len(passages) < 2 * chunks:
        most = len(ids) // (2 * tokens)
        raise BadPlan(
            f"--chunks: {chunks}x{tokens} does not go into the text; take more than {ASKED_TOKENS} tokens and at most {most} of them",
            field="chunks",
        )
    draw, made = Random(seed), []
    for _ in range(cases):
        taken = draw.sample(range(len(passages)), chunks)
        while any(b == a + 1 for a, b in itertools.pairwise(taken)):
            draw.shuffle(taken)
        asked = passages[draw.choice(taken)][:ASKED_TOKENS]
        made.append({"chunks": [passages[number] for number in taken], "question": asked})
    return made


def measure_blend(
    settings: Settings, ratios: Sequence[float], cases: int, chunks: int, tokens: int, steps: int, seed: int
) -> Figures:
    """Agreement and computed share at each ratio, and with keys left unrotated. Raises OctavoError."""
    made = blend_cases(prose_ids(settings.manifest.model.ref), cases, chunks, tokens, seed)
    answers: list[dict[str, Any]] = []
    with Child.of_module("the blender", MODULE, given_flags(settings)) as child:
        for number, case in enumerate(made, 1):
            print(f"octavo: blending prompt {number} of {cases}", file=sys.stderr)
            answers.append(child.ask(**case, steps=steps, ratios=list(ratios)))
    config = {"chunks": chunks, "chunk_tokens": tokens, "steps": steps, "seed": seed}
    return Figures("blend", tuple(blend_figures(answers, steps)), config)


def blend_figures(answers: Sequence[dict[str, Any]], steps: int) -> list[Figure]:
    """Means over all prompts, under `r15` for a ratio of 0.15 and `unrotated`."""
    results: list[Figure] = []
    for name in answers[0]:
        label = name if name == "unrotated" else f"r{round(100 * float(name))}"
        found = [answer[name] for answer in answers]
        for part, unit, n in (
            ("top1", "share", steps * len(found)),
            ("kl", "nats", steps * len(found)),
            ("computed", "share", len(found)),
        ):
            values = sorted(item[part] for item in found)
            spread = (values[len(values) // 4], values[3 * len(values) // 4])
            results.append(Figure(f"{part}/{label}", sum(values) / len(values), unit, n, spread))
    return results
