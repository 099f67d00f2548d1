"""Batch: the dense per-slot state of a worker, and the tensors of one step out of it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from octavo.step import Chunk, SeqView

from octavo_gpuworker.model.inputs import StepInputs
from octavo_gpuworker.sequence import Sequence
from octavo_gpuworker.step_buffer import pack


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

    def rows(self, slots: np.ndarray, columns: int) -> np.ndarray:
        """A copy of the first `columns` of the slots' rows."""
        rows: np.ndarray = self._table[slots, :columns]
        return rows


def views(sequences: Iterable[Sequence], block_tokens: int) -> list[SeqView]:
    """What compose() needs of the sequences that could step."""
    return [
        SeqView(seq.slot, seq.rank, len(seq.tokens), seq.computed, len(seq.blocks) * block_tokens, seq.paused)
        for seq in sequences
        if not seq.waiting
    ]


def build_inputs(
    chunks: list[Chunk], by_slot: dict[int, Sequence], tables: BlockTables, device: torch.device
) -> StepInputs:
    """The tensors of one mixed step, sequence after sequence, without padding."""
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
    slot_mapping = table[of_token, positions // size].astype(np.int64) * size + positions % size
    sampled = np.fromiter((chunk.samples for chunk in chunks), dtype=bool, count=len(chunks))
    ints = (query_start.astype(np.int32), contexts.astype(np.int32), table)
    packed = pack((token_ids, positions, slot_mapping, query_start[1:][sampled] - 1, *ints), device)
    return StepInputs(
        token_ids=packed[0],
        positions=packed[1],
        slot_mapping=packed[2],
        sample_rows=packed[3],
        query_start=packed[4],
        context_len=packed[5],
        block_tables=packed[6],
        new_tokens=counts.tolist(),
        contexts=contexts.tolist(),
    )
