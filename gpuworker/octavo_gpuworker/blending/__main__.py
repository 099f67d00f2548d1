"""python -m octavo_gpuworker.blending [manifest flags]: answers requests on stdin, one JSON object a line, until stdin ends.

{"chunks": [[...], ...], "question": [...], "steps": 16, "ratios": [0.15]} -> {"0.15": {"top1", "kl", "computed"}, "unrotated": {...}}:
how often the blended prompt's likeliest next token is the full prefill's, over the `steps` tokens that the full prefill says
greedily, and their mean Kullback-Leibler divergence in nats. An error is {"error": "..."} and the process goes on.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from octavo.artifacts import resolve_model
from octavo.errors import OctavoError
from octavo.rpc.settings import load_settings
from torch import Tensor

from octavo_gpuworker.blending.blend import Blended, Blender
from octavo_gpuworker.blending.dense import DenseLayers
from octavo_gpuworker.model.load import load_model


def main() -> int:
    """Runs until stdin ends. Exit code 2 with one line when the settings or the model cannot be used."""
    try:
        manifest = load_settings(sys.argv[1:], {}).manifest
        decoder = load_model(resolve_model(manifest.model.ref), dtype="float32", kernels="torch")
        blender = Blender(DenseLayers(decoder))
    except (OctavoError, ValueError) as error:
        print(f"octavo bench blend: {error}", file=sys.stderr)
        return 2
    for line in sys.stdin:
        try:
            answer = measure(blender, json.loads(line))
        except (ValueError, KeyError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
    return 0


def measure(blender: Blender, case: dict[str, Any]) -> dict[str, Any]:
    """One prompt, blended at every ratio, against its full prefill. ValueError for an unusable case."""
    parts, question, steps = case["chunks"], list(case["question"]), int(case["steps"])
    if not parts or not all(parts) or not question or steps < 1:
        raise ValueError("chunks, question: give tokens; steps: at least 1")
    chunks = [blender.chunk(part) for part in parts]
    prompt = [token for part in parts for token in part] + question
    whole = blender.chunk(prompt[:-1])  # a chunk at the front is a prefix: nothing of it is computed for each token
    said: list[int] = []
    while len(said) < steps:
        said.append(int(blender.blend([whole], [prompt[-1], *said], 0.0, 1).logits[0].argmax()))
    fresh = [*question, *said[:-1]]
    truth = blender.full([*prompt, *said[:-1]], steps)
    answer = {f"{ratio:g}": _against(truth, blender.blend(chunks, fresh, ratio, steps)) for ratio in case["ratios"]}
    answer["unrotated"] = _against(truth, blender.blend(chunks, fresh, 0.0, steps, rotate=False))
    return answer


def _against(truth: Tensor, blended: Blended) -> dict[str, float]:
    want, have = truth.log_softmax(-1), blended.logits.log_softmax(-1)
    return {
        "top1": float((want.argmax(-1) == have.argmax(-1)).float().mean()),
        "kl": float((want.exp() * (want - have)).sum(-1).mean()),
        "computed": blended.computed / blended.all,
    }


if __name__ == "__main__":
    sys.exit(main())
