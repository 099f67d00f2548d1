"""Batch: the dense per-slot state of a worker, and the arrays of one step out of it. numpy only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from octavo.step import Chunk, SeqView

from octavo_gpuworker.sequence import PENDING, Sequence


@dataclass(slots=True)
class StepBatch:
    """One mixed step: S sequences with T new tokens in all, sequence after sequence, without padding; R rows are sampled."""

    token_ids: NDArray[np.int64]
    """[T]."""
    positions: NDArray[np.int64]
    """[T]."""
    slot_mapping: NDArray[np.int64]
    """[T]: block_id * block_tokens + offset where each new token's KV goes."""
    query_start: NDArray[np.int32]
    """[S + 1]: cumulative count of new tokens."""
    context_len: NDArray[np.int32]
    """[S]: KV length after this step, earlier tokens included."""
    block_tables: NDArray[np.int32]
    """[S, max_blocks]: a row covers positions [0, context_len); what lies beyond is not read."""
    sample_rows: NDArray[np.int64]
    """[L]: rows of token_ids whose logits are wanted, ascending."""
    row_source: NDArray[np.int64]
    """[R]: which of the L logits each sampled row continues; L = R but for the siblings of a prompt, which share one."""
    rows: list[Sequence]
    """[R]: whose parameters, seed and history the draw takes; not changed before the step's result was taken."""
    pending: NDArray[np.int64] | None = None
    """[T]: the row of the step before, launched and not read yet, whose token this is; -1 where token_ids has it. None: nowhere."""


class BlockTables:
    """One row of block ids per slot, updated by grants, so that a step copies rows and builds no lists."""

    def __init__(self, block_tokens: int, max_blocks: int) -> None:
        self.block_tokens = block_tokens
        self._table = np.zeros((8, max_blocks), dtype=np.int32)

    def set(self, slot: int, blocks: list[int], start: int = 0) -> None:
        """Writes `blocks` into the slot's row from column `start`."""
        rows, columns = self._table.shape
        if slot >= rows or start + len(blocks) > columns:
            grown = np.zeros((max(rows, 2 * slot + 2), max(columns, start + len(blocks))), dtype=np.int32)
            grown[:rows, :columns] = self._table
            self._table = grown
        self._table[slot, start : start + len(blocks)] = blocks

    def rows(self, slots: NDArray[np.int64], columns: int) -> NDArray[np.int32]:
        """A copy of the first `columns` of the slots' rows."""
        rows: NDArray[np.int32] = self._table[slots, :columns]
        return rows


def views(sequences: Iterable[Sequence], block_tokens: int) -> list[SeqView]:
    """What compose() needs of the sequences that could step."""
    return [
        SeqView(seq.slot, seq.rank, len(seq.tokens), seq.computed, len(seq.blocks) * block_tokens, seq.paused)
        for seq in sequences
        if not seq.waiting
    ]


def build_batch(
    chunks: list[Chunk],
    by_slot: dict[int, Sequence],
    tables: BlockTables,
    row_before: Mapping[int, int] | None = None,
) -> StepBatch:
    """The arrays of one mixed step; a leader at the end of its prefill brings its siblings' rows.

    `row_before`: slot -> its sampled row in the step that was launched before and not read; those slots' last token is PENDING.
    """
    size = tables.block_tokens
    counts = np.fromiter((chunk.count for chunk in chunks), dtype=np.int64, count=len(chunks))
    starts = np.fromiter((chunk.start for chunk in chunks), dtype=np.int64, count=len(chunks))
    slots = np.fromiter((chunk.slot for chunk in chunks), dtype=np.int64, count=len(chunks))
    query_start = np.zeros(len(chunks) + 1, dtype=np.int64)
    np.cumsum(counts, out=query_start[1:])
    total = int(query_start[-1])
    positions = np.arange(total, dtype=np.int64) - np.repeat(query_start[:-1] - starts, counts)
    token_ids = np.empty(total, dtype=np.int64)
    for chunk, at in zip(chunks, query_start, strict=False):
        tokens = by_slot[chunk.slot].tokens
        if chunk.count == 1:
            token_ids[at] = tokens[chunk.start]
        else:
            token_ids[at : at + chunk.count] = tokens[chunk.start : chunk.start + chunk.count]
    contexts = starts + counts
    table = tables.rows(slots, int(-(-contexts.max() // size)))
    of_token = np.repeat(np.arange(len(chunks)), counts)
    sampled = np.fromiter((chunk.samples for chunk in chunks), dtype=bool, count=len(chunks))
    rows, source = _rows(chunks, by_slot)
    pending = None
    if row_before:
        before = [row_before.get(chunk.slot, -1) for chunk in chunks]
        pending = np.where(token_ids == PENDING, np.repeat(np.array(before, dtype=np.int64), counts), -1)
        token_ids[pending >= 0] = 0  # a token that exists; the backend puts the drawn one in its place
    return StepBatch(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=table[of_token, positions // size].astype(np.int64) * size + positions % size,
        query_start=query_start.astype(np.int32),
        context_len=contexts.astype(np.int32),
        block_tables=table,
        sample_rows=query_start[1:][sampled] - 1,
        row_source=np.array(source, dtype=np.int64),
        rows=rows,
        pending=pending,
    )


def _rows(chunks: list[Chunk], by_slot: dict[int, Sequence]) -> tuple[list[Sequence], list[int]]:
    rows: list[Sequence] = []
    source: list[int] = []
    row = 0
    for chunk in chunks:
        if chunk.samples:
            seq = by_slot[chunk.slot]
            rows.append(seq)
            source.append(row)
            if seq.siblings:
                rows += seq.siblings
                source += [row] * len(seq.siblings)
            row += 1
    return rows, source
