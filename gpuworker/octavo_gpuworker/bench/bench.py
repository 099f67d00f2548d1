"""Bench: opens backends as rows ask for them, measures rows and scores text. One process, one backend at work at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from octavo.manifest import Manifest

from octavo_gpuworker.backends.backend import Backend
from octavo_gpuworker.backends.limits import Limits
from octavo_gpuworker.backends.opening import open_backend
from octavo_gpuworker.bench.quality import score
from octavo_gpuworker.bench.row import Row, parse_row
from octavo_gpuworker.bench.runner import Runner, Sample
from octavo_gpuworker.bench.through import Through

BUDGET_TOKENS = 4096
"""A prefill row is one step."""
DTYPES = {"f32": "float32"}


class Bench:
    """Backends stay open, so that rows can be measured in turn."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._runners: dict[tuple[str, str], Runner] = {}

    def row(self, name: str, steps: int, seed: int = 0) -> dict[str, Any]:
        """One measurement with its floor, other prompts for each seed. Raises BadRow, or OctavoError when it cannot run here."""
        row = parse_row(name)
        runner = self._runner(row.weights, "int8" if row.kv_int8 else "auto")
        sample = runner.measure(row, steps, seed)
        answer = {**dataclasses.asdict(sample), "backend": runner.backend.name}
        limits = runner.backend.limits
        if row.kind != "run":
            answer["floor_s"] = floor_s(row, sample, limits)
            answer["threads"] = limits.threads
        return answer

    def quality(self, weights: str, kv_dtype: str, ids: list[int], command: Sequence[str] = ()) -> dict[str, Any]:
        """Negative log-likelihoods and best tokens of a text, position by position; see `score`.

        With a command every full block goes through that program before later positions attend to it (Through).
        """
        backend = self._runner(weights, kv_dtype).backend
        through = Through(command, backend.pool) if command else None
        nll, top = score(backend, ids, through)
        codec = {} if through is None else {"codec": through.close()}
        return {"nll": nll, "top": top, "backend": backend.name, **codec}

    def _runner(self, weights: str, kv_dtype: str) -> Runner:
        found = self._runners.get((weights, kv_dtype))
        if found is None:
            engine = self._manifest.engine
            if weights in DTYPES:
                changes: dict[str, Any] = {"dtype": DTYPES[weights], "weights": "auto", "kernels": "torch"}
            else:
                changes = {"weights": weights, "dtype": "bfloat16"}
            if kv_dtype != "auto":
                changes["kv_dtype"] = kv_dtype
            manifest = dataclasses.replace(self._manifest, engine=dataclasses.replace(engine, **changes))
            found = self._runners[weights, kv_dtype] = Runner(open_quietly(manifest), BUDGET_TOKENS)
        return found


def open_quietly(manifest: Manifest) -> Backend:
    """A backend whose loading nobody watches."""
    return open_backend(manifest, lambda done, total: None)


def floor_s(row: Row, sample: Sample, limits: Limits) -> float:
    """The least time of the sample's steps: bytes over measured bandwidth, or multiply-adds over the measured peak; the larger one."""
    if row.kind == "prefill":
        macs = row.size * limits.token_macs + limits.head_macs
        return max(macs / limits.peak_macs_per_s(), limits.weight_bytes / limits.stream_bytes_per_s())
    step_bytes = limits.weight_bytes + row.size * sample.context * limits.kv_token_bytes
    macs = row.size * (limits.token_macs + limits.head_macs)
    step_s = max(step_bytes / limits.stream_bytes_per_s(), macs / limits.peak_macs_per_s())
    return sample.steps * step_s
