"""score: how well a backend predicts a text, in windows that each begin anew."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from octavo.step import Chunk

from octavo_gpuworker.backends.backend import Backend
from octavo_gpuworker.batch import build_batch
from octavo_gpuworker.bench.through import Through
from octavo_gpuworker.orders import AdmitOrder, Sampling
from octavo_gpuworker.sequence import from_admit
from octavo_gpuworker.slots import SlotTable
from octavo_gpuworker.warmup import blocks_for

WINDOW = 1024
CHUNK = 128
"""Positions per step: their logits lie in memory at once."""


def score(backend: Backend, ids: list[int], through: Through | None = None) -> tuple[list[float], list[int]]:
    """(negative log-likelihood of ids[i + 1], most likely id) for every position i but the last of each window of WINDOW tokens.

    `through` replaces each block once it is full.
    """
    nll: list[float] = []
    top: list[int] = []
    for start in range(0, len(ids), WINDOW):
        window = ids[start : start + WINDOW]
        if len(window) < 2:
            break
        for logits, targets in _window(backend, window, through):
            shifted = logits.astype(np.float64)
            shifted -= shifted.max(axis=1, keepdims=True)
            total = np.log(np.exp(shifted).sum(axis=1))
            nll += (total - shifted[np.arange(len(targets)), targets]).tolist()
            top += logits.argmax(axis=1).tolist()
    return nll, top


def _window(
    backend: Backend, window: list[int], through: Through | None = None
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """The logits of every position that has a next token, chunk by chunk over one sequence's blocks."""
    size = backend.pool.block_tokens
    blocks = list(range(1, 1 + blocks_for(len(window), size)))
    order = AdmitOrder(1, 0, window, len(window), 0, blocks, Sampling(), 0, len(window) + 1)
    sequence, table = from_admit(order, 0), SlotTable(size)
    table.admit(sequence)
    for start in range(0, len(window) - 1, CHUNK):
        count = min(CHUNK, len(window) - 1 - start)
        batch = build_batch([Chunk(0, start, count, True)], {0: sequence}, table)
        batch.sample_rows = np.arange(count, dtype=np.int32)
        targets = np.array(window[start + 1 : start + 1 + count], dtype=np.int64)
        yield backend.logits(batch), targets
        if through is not None:
            through.replace(blocks[start // size : (start + count) // size])
