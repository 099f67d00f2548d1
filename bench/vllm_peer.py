"""vLLM's side of `octavo bench engine --peer vllm="PYTHON bench/vllm_peer.py MODEL_FOLDER"`, run by the Python that has vLLM.

MODEL_FOLDER is a Hugging Face folder. Answers the row requests of the bench on its standard output: prompts of random ids, greedy
(or temperature 0.8, top-p 0.95), the end of text ignored, no prefix cache. A decode step is what a longer output takes beyond one
token, over the tokens more. bfloat16 alone; other weights are skipped with the reason.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # between its turns it must not spin on our cores
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "3")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

MAX_LEN = 8192
MAX_SEQS = 64


class VllmPeer:
    """One engine for all rows."""

    def __init__(self, folder: str) -> None:
        from vllm import LLM, SamplingParams

        self._params = SamplingParams
        self._engine = LLM(
            folder, dtype="bfloat16", max_model_len=MAX_LEN, max_num_seqs=MAX_SEQS, enable_prefix_caching=False
        )
        self._draw = random.Random(0)

    def row(self, name: str, steps: int) -> dict[str, Any]:
        """One sample, or why there is none."""
        kind, weights, size, *extras = name.split("/")
        if weights != "bf16" or kind not in ("prefill", "decode") or "kv-int8" in extras:
            return {"skip": "only bf16 prefill and decode are measured"}
        sampled = "sampled" in extras
        if kind == "prefill":
            return {"tokens": int(size), "steps": 1, "seconds": self._seconds(1, int(size), 1, sampled)}
        batch = int(size[1:])
        context = next((int(item[3:]) for item in extras if item.startswith("ctx")), 256)
        if batch > MAX_SEQS or context + steps >= MAX_LEN:
            return {"skip": f"more than {MAX_SEQS} sequences or {MAX_LEN} tokens"}
        first = self._seconds(batch, context, 1, sampled)
        seconds = self._seconds(batch, context, 1 + steps, sampled) - first
        return {"tokens": batch * steps, "steps": steps, "seconds": seconds}

    def _seconds(self, batch: int, prompt: int, output: int, sampled: bool) -> float:
        prompts = [
            {"prompt_token_ids": [self._draw.randrange(1000, 40000) for _ in range(prompt)]} for _ in range(batch)
        ]
        how = {"temperature": 0.8, "top_p": 0.95} if sampled else {"temperature": 0.0}
        params = self._params(max_tokens=output, ignore_eos=True, **how)
        began = time.perf_counter()
        self._engine.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - began


def main() -> int:
    """Answers until standard input ends. What vLLM prints goes to standard error: the answers alone are on the pipe."""
    if len(sys.argv) != 2:
        print("usage: python vllm_peer.py MODEL_FOLDER", file=sys.stderr)
        return 2
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = VllmPeer(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = peer.row(request["row"], request["steps"])
        except (RuntimeError, ValueError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
