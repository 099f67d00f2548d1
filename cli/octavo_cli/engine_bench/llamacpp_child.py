"""python -m octavo_cli.engine_bench.llamacpp_child GGUF THREADS: llama.cpp's side of the comparison, through llama_cpp's C API.

Answers the row requests of octavo_gpuworker.bench: the same names, the same batch and context, no sampling at all.
The model is requantized from GGUF for each precision: bf16 -> BF16, int8 -> Q8_0, int4 -> Q4_0.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FORMATS = {"bf16": "LLAMA_FTYPE_MOSTLY_BF16", "int8": "LLAMA_FTYPE_MOSTLY_Q8_0", "int4": "LLAMA_FTYPE_MOSTLY_Q4_0"}
MARGIN = 64
"""Positions behind a row's context for the tokens that it decodes."""


class LlamaCpp:
    """One context per (precision, batch, context length), kept for the next round."""

    def __init__(self, source: str, threads: int, folder: Path) -> None:
        import llama_cpp

        self._api: Any = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._quiet, None)
        llama_cpp.llama_backend_init()
        self._source, self._threads, self._folder = source, threads, folder
        self._models: dict[str, Any] = {}
        self._contexts: dict[tuple[str, int, int], Any] = {}

    def row(self, name: str, steps: int) -> dict[str, Any]:
        kind, weights, size_text, *extras = name.split("/")
        if kind == "prefill":
            tokens = int(size_text)
            return {"tokens": tokens, "steps": 1, "seconds": self._prefill(weights, tokens)}
        batch = int(size_text[1:])
        context = next((int(item[3:]) for item in extras if item.startswith("ctx")), 256)
        return {"tokens": batch * steps, "steps": steps, "seconds": self._decode(weights, batch, context, steps)}

    def _prefill(self, weights: str, tokens: int) -> float:
        context, fresh = self._context(weights, 1, tokens)
        self._forget(context, 0)
        if fresh:
            self._feed(context, 0, 0, tokens)
            self._forget(context, 0)
        began = time.perf_counter()
        self._feed(context, 0, 0, tokens)
        return time.perf_counter() - began

    def _decode(self, weights: str, batch: int, length: int, steps: int) -> float:
        context, fresh = self._context(weights, batch, length)
        if fresh:
            for sequence in range(batch):
                self._feed(context, sequence, 0, length)
        self._forget(context, length)
        self._step(context, batch, length)
        began = time.perf_counter()
        for step in range(1, steps + 1):
            self._step(context, batch, length + step)
        return time.perf_counter() - began

    def _model(self, weights: str) -> Any:
        api = self._api
        if weights not in self._models:
            path = self._folder / f"{weights}.gguf"
            params = api.llama_model_quantize_default_params()
            params.ftype, params.allow_requantize = getattr(api, FORMATS[weights]), True
            if api.llama_model_quantize(self._source.encode(), str(path).encode(), params):
                raise RuntimeError(f"llama.cpp cannot requantize {self._source} to {weights}")
            self._models[weights] = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
        return self._models[weights]

    def _context(self, weights: str, batch: int, length: int) -> tuple[Any, bool]:
        api, key = self._api, (weights, batch, length)
        if key in self._contexts:
            return self._contexts[key], False
        params = api.llama_context_default_params()
        params.n_ctx, params.n_seq_max = batch * (length + 2 * MARGIN), batch
        params.n_batch, params.n_ubatch = max(512, length), 512
        params.n_threads = params.n_threads_batch = self._threads
        self._contexts[key] = api.llama_init_from_model(self._model(weights), params)
        if not self._contexts[key]:
            raise RuntimeError(f"llama.cpp gives no context for {batch} sequences of {length} tokens")
        return self._contexts[key], True

    def _forget(self, context: Any, start: int) -> None:
        """Drops what every sequence holds from position `start` on."""
        self._api.llama_memory_seq_rm(self._api.llama_get_memory(context), -1, start, -1)

    def _feed(self, context: Any, sequence: int, start: int, count: int) -> None:
        self._run(context, [(1000 + (at * 7919 + sequence) % 40000, start + at, sequence) for at in range(count)])

    def _step(self, context: Any, batch: int, position: int) -> None:
        self._run(context, [(1000 + (position * 31 + i) % 40000, position, i) for i in range(batch)], all_logits=True)

    def _run(self, context: Any, tokens: list[tuple[int, int, int]], *, all_logits: bool = False) -> None:
        api = self._api
        batch = api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for at, (token, position, sequence) in enumerate(tokens):
            batch.token[at], batch.pos[at] = token, position
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
            batch.logits[at] = all_logits or at == len(tokens) - 1
        failed = api.llama_decode(context, batch)
        api.llama_synchronize(context)
        api.llama_batch_free(batch)
        if failed:
            raise RuntimeError(f"llama_decode of {len(tokens)} tokens ended with {failed}")


def main() -> int:
    """Answers until stdin ends."""
    with tempfile.TemporaryDirectory(prefix="octavo-peer-") as folder:
        peer = LlamaCpp(sys.argv[1], int(sys.argv[2]), Path(folder))
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer = peer.row(request["row"], request["steps"])
            except RuntimeError as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
