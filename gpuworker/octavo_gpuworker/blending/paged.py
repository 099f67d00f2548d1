"""PagedBlend: one sequence's chunks put together in its own blocks (CacheBlend: Yao et al., EuroSys 2025, arXiv 2405.16444).

The steps, each over at most a step's tokens, so that others run between them:
1. The chunks' KV is copied to its places, keys rotated on.
2. The model's first two layers are computed for all tokens, in a small pool of their own: their KV is exact.
3. The tokens whose KV of the second layer differs most from the copied one are chosen.
4. Those, and what no chunk's whole block covers, are computed by ordinary steps in which each run of them is a sequence of
   the same block table: a layer writes its KV before it attends, so they see one another and what is reused.

Only numpy and a Backend's steps: whatever computes them, the blend is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from octavo_gpuworker.backends.backend import Backend
from octavo_gpuworker.batch import StepBatch
from octavo_gpuworker.blending.fit import SELECTED_AT
from octavo_gpuworker.blending.kv_view import KvView, Values
from octavo_gpuworker.model.rope import frequencies
from octavo_gpuworker.orders import BlendPart
from octavo_gpuworker.slots import SlotTable


class PagedBlend:
    """Fills positions [0, end) of a block table. `beginning` is the model's first SELECTED_AT + 1 layers, with room for them."""

    def __init__(
        self,
        backend: Backend,
        beginning: Backend,
        tokens: Sequence[int],
        table: Sequence[int],
        parts: Sequence[BlendPart],
        end: int,
        share: float,
    ) -> None:
        """`share` of the reused tokens is computed again, those aside that stand at the front as they did alone."""
        self._backend, self._beginning = backend, beginning
        self._ids = np.array(tokens[:end], np.int32)
        self._table, self._parts, self._end, self._share = list(table), parts, end, share
        self._view, self._shallow = KvView(backend.pool), KvView(beginning.pool)
        self._frequencies = frequencies(backend.config).astype(np.float64)
        self._own_table = list(range(1, 1 + -(-end // beginning.pool.block_tokens)))
        self.budget = 1
        """Most tokens of the next step."""
        self.chosen: NDArray[np.int64] = np.zeros(0, np.int64)
        """Reused positions that are computed again."""

    def steps(self) -> Iterator[int]:
        """Runs the blend; after each step, how many prefilled tokens it was worth. Raises what the backend's steps raise."""
        reused = np.zeros(self._end, np.bool_)
        exact = np.zeros(self._end, np.bool_)
        for part in self._parts:
            reused[part.start : part.start + part.count] = True
            if part.start == part.first == 0:
                exact[: part.count] = True
            yield from self._move(part)
        layers = self._backend.config.layers
        for start, count in self._pieces(self._end):
            self._run(self._beginning, self._own_table, [(start, count)])
            yield -(-count * (SELECTED_AT + 1) // layers)
        self.chosen = self._choose(np.flatnonzero(reused & ~exact))
        self._take_shallow(reused & ~exact)
        again = ~reused
        again[self.chosen] = True
        yield from self._compute(np.flatnonzero(again))

    def _move(self, part: BlendPart) -> Iterator[int]:
        """Copies a chunk to its place, keys turned by the difference: rotations add up (RoPE, arXiv 2104.09864, 3.2.2)."""
        angles = (part.start - part.first) * self._frequencies
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        half = len(angles)
        for done, count in self._pieces(part.count):
            if part.start == part.first:
                self._view.copy(part.blocks, part.first + done, self._table, part.start + done, count)
            else:
                values = self._view.read(part.blocks, part.first + done, count)
                left, right = values[:, 0, ..., :half].copy(), values[:, 0, ..., half:].copy()
                values[:, 0, ..., :half] = left * cos - right * sin
                values[:, 0, ..., half:] = right * cos + left * sin
                self._view.write(self._table, part.start + done, values)
            yield 0

    def _pieces(self, total: int) -> Iterator[tuple[int, int]]:
        """(start, count) of `total` tokens, each by the budget of its moment."""
        start = 0
        while start < total:
            count = min(self.budget, total - start)
            yield start, count
            start += count

    def _choose(self, candidates: NDArray[np.int64]) -> NDArray[np.int64]:
        """The share of the candidates whose KV deviates most, ascending."""
        if not len(candidates):
            return candidates
        only = slice(SELECTED_AT, SELECTED_AT + 1)
        held = self._view.read(self._table, 0, self._end, only)
        fresh = self._shallow.read(self._own_table, 0, self._end, only)
        moved = np.square(fresh - held).sum(axis=(0, 1, 2, 4))[candidates]
        count = math.ceil(self._share * len(candidates))
        return np.sort(candidates[np.argsort(-moved, kind="stable")[:count]])

    def _take_shallow(self, positions: NDArray[np.bool_]) -> None:
        """The first layers' KV is there anyhow, and exact."""
        layers = slice(0, SELECTED_AT + 1)
        for start, count in _runs(np.flatnonzero(positions)):
            self._view.write(self._table, start, self._fresh(start, count), layers)

    def _fresh(self, start: int, count: int) -> Values:
        return self._shallow.read(self._own_table, start, count)

    def _compute(self, positions: NDArray[np.int64]) -> Iterator[int]:
        """All layers of these positions, ascending: each sees those before it as they will be read."""
        at = 0
        while at < len(positions):
            batch = positions[at : at + self.budget]
            self._run(self._backend, self._table, _runs(batch))
            at += len(batch)
            yield len(batch)

    def _run(self, backend: Backend, table: Sequence[int], runs: Sequence[tuple[int, int]]) -> None:
        """One step that samples nothing, each run (start, count) of positions a sequence of the same table."""
        counts = np.array([count for _, count in runs], np.int32)
        query_start = np.zeros(len(runs) + 1, np.int32)
        np.cumsum(counts, out=query_start[1:])
        context_len = np.array([start + count for start, count in runs], np.int32)
        size = backend.pool.block_tokens
        columns = -(-int(context_len.max()) // size)
        nobody = np.zeros(0, np.int32)
        backend.logits(
            StepBatch(
                token_ids=np.concatenate([self._ids[start : start + count] for start, count in runs]),
                query_start=query_start,
                context_len=context_len,
                block_tables=np.tile(np.array(table[:columns], np.int32), (len(runs), 1)),
                sample_rows=nobody,
                rows=[],
                row_slots=nobody,
                positions=nobody,
                slots=SlotTable(size),
            )
        )


def _runs(positions: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ascending positions as (start, count) of those that follow one another."""
    if not len(positions):
        return []
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    return [(int(run[0]), len(run)) for run in np.split(positions, breaks)]
