"""StepArrays: the memory of one native step, kept between steps; the engine writes into it, the library reads and answers there.

Every array is a numpy array whose first entries count; `reserve` makes them large enough and keeps what was written.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from octavo_gpuworker.native.abi import Batch

PER_ROW: Final[dict[str, Any]] = {
    "sample_rows": np.int32, "temperature": np.float32, "top_p": np.float64, "min_p": np.float64, "top_k": np.int32,
    "logprobs": np.int32, "seeds": np.uint64, "positions": np.int64, "repetition": np.float32, "presence": np.float32,
    "frequency": np.float32, "prompt_len": np.int32, "out_tokens": np.int32, "out_logprobs": np.float32,
}  # fmt: skip
ARRAYS: Final = (
    "token_ids", "query_start", "context_len", "block_tables", "history_start", "history", "bias_start", "bias_ids", "bias_values",
    "out_top_ids", "out_top_logprobs", "out_logits", "grammar", "grammar_rows", "want_logits", *PER_ROW,
)  # fmt: skip
"""Attributes whose replacement changes the C view."""
ROW_DEFAULTS: Final[dict[str, float]] = {
    "temperature": 0,
    "top_p": 1,
    "logprobs": -1,
    "repetition": 1,
    "out_tokens": -1,
}


class StepArrays:
    """Inputs and results of a step of T new tokens in S sequences, R rows of which sample.

    Inputs of the forward pass:
        token_ids [T] int32; query_start [S + 1] int32, cumulative; context_len [S] int32, the new tokens included;
        block_tables [S, columns] int32; sample_rows [R] int32, rows of token_ids, which may repeat (siblings).
    How each of the R rows draws (defaults: greedy, no log-probabilities):
        temperature float32 (1e-5 or less: greedy), top_k int32 (0: all), top_p and min_p float64, seeds uint64,
        positions int64 (of the token to draw), logprobs int32 (-1: none, k: the chosen one and the k best);
        repetition, presence, frequency float32 over history[history_start[r]:history_start[r + 1]] int32 (prompt, then
        output, prompt_len [R] int32 of it the prompt; an empty span: no penalties);
        bias_ids int32, bias_values float32 in [bias_start[r], bias_start[r + 1]), -inf forbids;
        grammar [masks, (vocab + 31) // 32] uint32 with grammar_rows [R] int32 (-1: all allowed), None without one.
    Results:
        out_tokens [R] int32, -1 where the row's logits were not finite or nothing was allowed; out_logprobs [R] float32;
        out_top_ids, out_top_logprobs [R, top] best first; out_logits [R, vocab] float32 when `want_logits`.
    """

    def __init__(self, vocab_size: int, *, want_logits: bool = False) -> None:
        self.vocab_size = vocab_size
        self.want_logits = want_logits
        self._struct: Batch | None = None
        self._held: tuple[Any, ...] = ()
        self.token_ids: NDArray[np.int32] = np.zeros(0, np.int32)
        self.query_start: NDArray[np.int32] = np.zeros(0, np.int32)
        self.context_len: NDArray[np.int32] = np.zeros(0, np.int32)
        self.block_tables: NDArray[np.int32] = np.zeros((0, 0), np.int32)
        self.history_start: NDArray[np.int32] = np.zeros(1, np.int32)
        self.bias_start: NDArray[np.int32] = np.zeros(1, np.int32)
        self.history: NDArray[np.int32] = np.zeros(1, np.int32)
        self.bias_ids: NDArray[np.int32] = np.zeros(1, np.int32)
        self.bias_values: NDArray[np.float32] = np.zeros(1, np.float32)
        self.grammar: NDArray[np.uint32] | None = None
        self.grammar_rows: NDArray[np.int32] | None = None
        self.out_top_ids: NDArray[np.int32] = np.zeros((0, 1), np.int32)
        self.out_top_logprobs: NDArray[np.float32] = np.zeros((0, 1), np.float32)
        self.out_logits: NDArray[np.float32] = np.zeros((0, 0), np.float32)
        self.sample_rows: NDArray[np.int32]
        self.temperature: NDArray[np.float32]
        self.top_p: NDArray[np.float64]
        self.min_p: NDArray[np.float64]
        self.top_k: NDArray[np.int32]
        self.logprobs: NDArray[np.int32]
        self.seeds: NDArray[np.uint64]
        self.positions: NDArray[np.int64]
        self.repetition: NDArray[np.float32]
        self.presence: NDArray[np.float32]
        self.frequency: NDArray[np.float32]
        self.prompt_len: NDArray[np.int32]
        self.out_tokens: NDArray[np.int32]
        self.out_logprobs: NDArray[np.float32]
        for name, dtype in PER_ROW.items():
            setattr(self, name, np.zeros(0, dtype))
        self.reserve(tokens=1, sequences=1, rows=1, columns=1, top=1)

    def reserve(
        self, *, tokens: int, sequences: int, rows: int, columns: int, top: int = 1, history: int = 1, bias: int = 1
    ) -> None:
        """Room for a step of that size: `columns` of block tables, `top` best tokens, `history` and `bias` entries in all."""
        self.token_ids = _grown(self.token_ids, (tokens,))
        # grown by more than was asked for, and whoever asks next looks at one of them alone: the others keep pace
        self.context_len = _grown(self.context_len, (sequences,))
        sequences = len(self.context_len)
        self.query_start = _grown(self.query_start, (sequences + 1,))
        self.block_tables = _grown(self.block_tables, (sequences, columns))
        for name in PER_ROW:
            setattr(self, name, _grown(getattr(self, name), (rows,), ROW_DEFAULTS.get(name, 0)))
        rows = len(self.sample_rows)
        self.history_start = _grown(self.history_start, (rows + 1,))
        self.bias_start = _grown(self.bias_start, (rows + 1,))
        self.history = _grown(self.history, (history,))
        self.bias_ids = _grown(self.bias_ids, (bias,))
        self.bias_values = _grown(self.bias_values, (bias,))
        self.out_top_ids = _grown(self.out_top_ids, (rows, top))
        self.out_top_logprobs = _grown(self.out_top_logprobs, (rows, top))
        if self.want_logits and len(self.out_logits) < rows:
            self.out_logits = np.zeros((rows, self.vocab_size), np.float32)

    def greedy(self, rows: int) -> None:
        """Sets the first `rows` rows to their defaults: no noise, no penalties, no log-probabilities."""
        for name in PER_ROW:
            if name != "sample_rows":
                getattr(self, name)[:rows] = ROW_DEFAULTS.get(name, 0)
        self.history_start[: rows + 1] = 0
        self.bias_start[: rows + 1] = 0
        self.grammar = self.grammar_rows = None

    def struct(self, *, tokens: int, sequences: int, rows: int) -> Batch:
        """The C view of the first entries. ValueError when an array is shorter than they ask for, or a grammar misshapen."""
        self._check(tokens, sequences, rows)
        held = tuple(map(self.__dict__.get, ARRAYS))
        if self._struct is None or any(map(operator.is_not, held, self._held)):
            self._struct, self._held = self._pointers(), held
        batch = self._struct
        batch.tokens, batch.sequences, batch.rows = tokens, sequences, rows
        return batch

    def _pointers(self) -> Batch:
        """The addresses of all arrays; asked for anew only when one of them was replaced, since 30 of them cost as much as a small step."""
        batch = Batch(table_stride=self.block_tables.shape[1])
        for name in (
            "token_ids",
            "query_start",
            "context_len",
            "block_tables",
            "history_start",
            "history",
            "bias_start",
        ):
            setattr(batch, name, getattr(self, name).ctypes.data)
        for name in ("bias_ids", "bias_values", "out_top_ids", "out_top_logprobs", *PER_ROW):
            setattr(batch, name, getattr(self, name).ctypes.data)
        batch.top_stride = self.out_top_ids.shape[1]
        if self.grammar is not None and self.grammar_rows is not None:
            batch.grammar, batch.grammar_rows = self.grammar.ctypes.data, self.grammar_rows.ctypes.data
            batch.grammar_masks = self.grammar.shape[0]
        batch.out_logits = self.out_logits.ctypes.data if self.want_logits else None
        return batch

    def _check(self, tokens: int, sequences: int, rows: int) -> None:
        sizes = {"tokens": tokens, "sequences": sequences, "rows": rows}
        room = {"tokens": len(self.token_ids), "sequences": len(self.context_len), "rows": len(self.sample_rows)}
        for name, size in sizes.items():
            if not 0 <= size <= room[name]:
                raise ValueError(f"{name} is {size}; there is room for {room[name]}, call reserve() first")
        for starts, entries in ((self.history_start, self.history), (self.bias_start, self.bias_ids)):
            if int(starts[rows]) > len(entries):
                raise ValueError(f"spans end at {int(starts[rows])}, beyond the {len(entries)} entries reserved")
        if self.grammar is None:
            return
        if self.grammar.dtype != np.uint32 or self.grammar.ndim != 2 or not self.grammar.flags.c_contiguous:
            raise ValueError("grammar must be a contiguous uint32 array [masks, (vocab + 31) // 32]")
        if self.grammar.shape[1] != (self.vocab_size + 31) // 32:
            raise ValueError(
                f"grammar has {self.grammar.shape[1]} words a mask, the vocabulary needs {(self.vocab_size + 31) // 32}"
            )
        if self.grammar_rows is None or self.grammar_rows.dtype != np.int32 or len(self.grammar_rows) < rows:
            raise ValueError(f"grammar_rows must be an int32 array of {rows} or more")


def _grown(array: NDArray[Any], shape: tuple[int, ...], fill: float = 0) -> NDArray[Any]:
    """The array itself where it is large enough, else a larger copy."""
    if all(have >= want for have, want in zip(array.shape, shape, strict=True)):
        return array
    larger = tuple(max(have, want + want // 2) for have, want in zip(array.shape, shape, strict=True))
    grown = np.full(larger, fill, array.dtype)
    grown[tuple(slice(size) for size in array.shape)] = array
    return grown
