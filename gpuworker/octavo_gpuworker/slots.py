"""SlotTable: what a worker knows of its sequences as arrays over slots, so that a step copies rows and builds no lists."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_gpuworker.sequence import Sequence

_FIRST_SLOTS, _FIRST_COLUMNS, _FIRST_TOKENS = 8, 64, 512


class SlotTable:
    """Rows are written when a sequence is admitted, granted blocks or given a token; a slot's next owner writes them anew."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.version = 0
        """Moves with every admission and grant: what was copied at the same version is still true, tokens aside."""
        self.blocks: NDArray[np.int32] = np.zeros((_FIRST_SLOTS, _FIRST_COLUMNS), np.int32)
        """[slots, columns]: block ids."""
        self.tokens: NDArray[np.int32] = np.zeros((_FIRST_SLOTS, _FIRST_TOKENS), np.int32)
        """[slots, positions]: prompt, then output."""
        self.temperature: NDArray[np.float32] = np.zeros(_FIRST_SLOTS, np.float32)
        self.top_p: NDArray[np.float64] = np.ones(_FIRST_SLOTS, np.float64)
        self.min_p: NDArray[np.float64] = np.zeros(_FIRST_SLOTS, np.float64)
        self.top_k: NDArray[np.int32] = np.zeros(_FIRST_SLOTS, np.int32)
        self.logprobs: NDArray[np.int32] = np.full(_FIRST_SLOTS, -1, np.int32)
        self.seeds: NDArray[np.uint64] = np.zeros(_FIRST_SLOTS, np.uint64)
        self.repetition: NDArray[np.float32] = np.ones(_FIRST_SLOTS, np.float32)
        self.presence: NDArray[np.float32] = np.zeros(_FIRST_SLOTS, np.float32)
        self.frequency: NDArray[np.float32] = np.zeros(_FIRST_SLOTS, np.float32)
        self.prompt_len: NDArray[np.int32] = np.zeros(_FIRST_SLOTS, np.int32)
        self.alters: NDArray[np.bool_] = np.zeros(_FIRST_SLOTS, np.bool_)
        """The row's logits are changed before the draw: penalties, bias or a least length."""

    def admit(self, seq: Sequence) -> None:
        """Everything that is known of a sequence at its start."""
        self._reserve(seq.slot, len(seq.blocks), len(seq.tokens) + 1)
        self.version += 1
        slot, sampling = seq.slot, seq.sampling
        self.blocks[slot, : len(seq.blocks)] = seq.blocks
        self.tokens[slot, : len(seq.tokens)] = seq.tokens
        self.temperature[slot], self.top_p[slot], self.min_p[slot] = (
            sampling.temperature,
            sampling.top_p,
            sampling.min_p,
        )
        self.top_k[slot] = min(sampling.top_k, np.iinfo(np.int32).max)
        self.logprobs[slot], self.seeds[slot] = sampling.logprobs, seq.seed
        self.repetition[slot], self.presence[slot] = sampling.repetition_penalty, sampling.presence_penalty
        self.frequency[slot], self.prompt_len[slot] = sampling.frequency_penalty, seq.prompt_len
        self.alters[slot] = sampling.alters_logits

    def grant(self, slot: int, blocks: list[int], start: int) -> None:
        """More blocks, from column `start` on."""
        self.version += 1
        self._reserve(slot, start + len(blocks), 0)
        self.blocks[slot, start : start + len(blocks)] = blocks

    def append(self, slot: int, position: int, token: int) -> None:
        """A token that was drawn."""
        if position >= self.tokens.shape[1]:
            self._reserve(slot, 0, 2 * position)
        self.tokens[slot, position] = token

    def extend(self, slot: int, position: int, tokens: SequenceOf[int]) -> None:
        """Tokens that were drawn one after the other, from `position` on."""
        end = position + len(tokens)
        if end > self.tokens.shape[1]:
            self._reserve(slot, 0, 2 * end)
        self.tokens[slot, position:end] = tokens

    def _reserve(self, slot: int, columns: int, tokens: int) -> None:
        slots = len(self.temperature)
        if slot < slots and columns <= self.blocks.shape[1] and tokens <= self.tokens.shape[1]:
            return
        slots = max(slots, 2 * slot + 2)
        for name, array in vars(self).items():
            if isinstance(array, np.ndarray):
                width = {"blocks": columns, "tokens": tokens}.get(name, 0)
                setattr(self, name, _grown(array, slots, width))


def _grown(array: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
    shape = (rows,) if array.ndim == 1 else (rows, max(array.shape[1], columns))
    if shape == array.shape:
        return array
    grown: NDArray[Any] = np.zeros(shape, array.dtype)
    grown[tuple(slice(size) for size in array.shape)] = array
    return grown
