"""Batch: the arrays of one mixed step, out of what compose() picked and the slots' table. numpy only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from octavo.step import Chunk, SeqView

from octavo_gpuworker.sequence import Sequence
from octavo_gpuworker.slots import SlotTable


@dataclass(slots=True)
class StepBatch:
    """One mixed step: S sequences with T new tokens in all, sequence after sequence, without padding; R rows are sampled."""

    token_ids: NDArray[np.int32]
    """[T]."""
    query_start: NDArray[np.int32]
    """[S + 1]: cumulative count of new tokens."""
    context_len: NDArray[np.int32]
    """[S]: KV length after this step, earlier tokens included."""
    block_tables: NDArray[np.int32]
    """[S, columns]: a row covers positions [0, context_len); what lies beyond is not read."""
    sample_rows: NDArray[np.int32]
    """[R]: rows of token_ids whose logits are wanted, ascending; the siblings of a prompt repeat its last one."""
    rows: list[Sequence]
    """[R]: whose parameters, seed and history the draw takes; not changed before the step's result was taken."""
    row_slots: NDArray[np.int32]
    """[R]: their rows of `slots`."""
    positions: NDArray[np.int32]
    """[R]: position of the token that is drawn."""
    slots: SlotTable
    pending: NDArray[np.int64] | None = None
    """[T]: the row of the step before, launched and not read yet, whose token this is; -1 where token_ids has it. None: nowhere."""


def views(sequences: Iterable[Sequence], block_tokens: int) -> list[SeqView]:
    """What compose() needs of the sequences that could step."""
    return [
        SeqView(seq.slot, seq.rank, len(seq.tokens), seq.computed, _capacity(seq, block_tokens), seq.paused)
        for seq in sequences
        if not seq.waiting
    ]


def _capacity(seq: Sequence, block_tokens: int) -> int:
    """Positions that it may compute now: what its blocks cover, or what lies before a load."""
    covered = len(seq.blocks) * block_tokens
    return min(covered, seq.head_len) if seq.head_len else covered


def build_batch(chunks: list[Chunk], by_slot: dict[int, Sequence], table: SlotTable) -> StepBatch:
    """The arrays of one mixed step; a leader at the end of its prefill brings its siblings' rows."""
    slots = np.array([chunk.slot for chunk in chunks], np.int32)
    starts = np.array([chunk.start for chunk in chunks], np.int32)
    if all([chunk.count == 1 for chunk in chunks]):
        return _decodes(chunks, slots, starts, by_slot, table)
    counts = np.array([chunk.count for chunk in chunks], np.int32)
    query_start = np.zeros(len(chunks) + 1, np.int32)
    np.cumsum(counts, out=query_start[1:])
    token_ids = np.empty(int(query_start[-1]), np.int32)
    rows: list[Sequence] = []
    at: list[int] = []
    owner: list[int] = []
    for index, chunk in enumerate(chunks):
        first, end = int(query_start[index]), int(query_start[index + 1])
        token_ids[first:end] = table.tokens[chunk.slot, chunk.start : chunk.start + chunk.count]
        if chunk.samples:
            seq = by_slot[chunk.slot]
            group = seq.drawing
            rows += group
            at += [end - 1] * len(group)
            owner += [index] * len(group)
    return _batch(token_ids, query_start, slots, starts + counts, np.array(at, np.int32), rows, owner, table)


def _decodes(
    chunks: list[Chunk],
    slots: NDArray[np.int32],
    starts: NDArray[np.int32],
    by_slot: dict[int, Sequence],
    table: SlotTable,
) -> StepBatch:
    """A step of one new token per sequence, the most frequent one."""
    token_ids, query_start = table.tokens[slots, starts], np.arange(len(chunks) + 1, dtype=np.int32)
    rows = [by_slot[chunk.slot] for chunk in chunks]
    if all([chunk.samples and not seq.siblings for chunk, seq in zip(chunks, rows, strict=True)]):
        return _batch(token_ids, query_start, slots, starts + 1, query_start[:-1], rows, None, table)
    groups = [seq.drawing if chunk.samples else [] for chunk, seq in zip(chunks, rows, strict=True)]
    owner = [index for index, group in enumerate(groups) for _ in group]
    every = [seq for group in groups for seq in group]
    return _batch(token_ids, query_start, slots, starts + 1, np.array(owner, np.int32), every, owner, table)


def _batch(
    token_ids: NDArray[np.int32],
    query_start: NDArray[np.int32],
    slots: NDArray[np.int32],
    context_len: NDArray[np.int32],
    sample_rows: NDArray[np.int32],
    rows: list[Sequence],
    owner: list[int] | None,
    table: SlotTable,
) -> StepBatch:
    columns = -(-int(context_len.max()) // table.block_tokens)
    return StepBatch(
        token_ids=token_ids,
        query_start=query_start,
        context_len=context_len,
        block_tables=table.blocks[slots, :columns],
        sample_rows=sample_rows,
        rows=rows,
        row_slots=slots if owner is None else np.array([seq.slot for seq in rows], np.int32),
        positions=context_len if owner is None else context_len[owner],
        slots=table,
    )
