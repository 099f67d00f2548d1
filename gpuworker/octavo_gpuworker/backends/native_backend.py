"""NativeBackend: the native CPU kernels; a step, sampling included, is one call with the interpreter's lock released."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from octavo.memory import resident_bytes

from octavo_gpuworker.backends.backend import StepResult
from octavo_gpuworker.backends.limits import Limits
from octavo_gpuworker.backends.native_pool import NativePool
from octavo_gpuworker.batch import StepBatch
from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.native.batch import StepArrays
from octavo_gpuworker.native.flight import ROOM, NativeFlight
from octavo_gpuworker.native.model import NativeModel, StepError, new_pool
from octavo_gpuworker.orders import TokenLogprobs
from octavo_gpuworker.sampled import Sampled

PARAMETERS = (
    "temperature",
    "top_p",
    "min_p",
    "top_k",
    "logprobs",
    "seeds",
    "repetition",
    "presence",
    "frequency",
    "prompt_len",
)
"""Columns of the slots' table that the sampler reads under the same names."""


@dataclass(frozen=True, slots=True)
class _Launched:
    batch: StepBatch
    most: int = 0
    """Steps that the library may do by itself, this one included; 0: it was begun alone."""
    stops: frozenset[int] = frozenset()


class NativeBackend:
    """A Backend; see there. Steps run on the library's own threads; `again` leaves it to them to go on."""

    name = "native"
    pipelined = False
    repeats = True
    computes_aside = True
    profiler = None
    """Its step is one call of a library, which torch.profiler cannot look into."""

    def __init__(
        self,
        model: NativeModel,
        pool: NativePool,
        *,
        fingerprint: bytes,
        limits: Callable[[], Limits],
        reason: str = "chosen",
        room: int = ROOM,
    ) -> None:
        """`room`: steps that it may be ahead."""
        self.model = model
        self.pool = pool
        self.fingerprint = fingerprint
        self._limits = limits
        self._arrays = model.arrays()
        self._flight = NativeFlight(model, room)
        self._scoring: StepArrays | None = None
        self._calls = ("step", f"native-{model.isa}", reason)
        self._steps = 0
        self._most_logprobs = -1
        """The largest number that a row of `_arrays` asks for."""
        self._tables: tuple[int, int] | None = None
        """Batch and version of the slots' table whose block tables `_arrays` has as far as they are granted."""
        self._filled: tuple[object, ...] = ()
        """What `_arrays` was filled for, but for tokens and lengths: most steps are the last one's decodes again."""

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    @property
    def max_position(self) -> int:
        return self.model.config.max_position

    @property
    def limits(self) -> Limits:
        return self._limits()

    def launch(self, batch: StepBatch, before: Any = None) -> _Launched:
        self._step(batch, self._arrays)
        return _Launched(batch)

    def again(self, launched: _Launched, most: int, stops: frozenset[int]) -> _Launched:
        again = _Launched(launched.batch, most, stops)
        if not self._flight.ahead:
            self._begin_run(again)
        elif self._flight.on:
            if self._tables_fit(launched.batch):
                self._flight.extend(most)
            else:
                self._flight.halt()
        return again

    def result(self, launched: _Launched) -> StepResult:
        found = self._take()
        if found is None and launched.most:  # it was held before this step
            self._begin_run(launched)
            found = self._take()
        if found is None:
            raise RuntimeError("the step was read before")
        tokens, elapsed_ns = found
        self._steps += 1
        return StepResult(Sampled(tokens, self._logprobs(launched.batch, tokens)), elapsed_ns, 0)

    def land(self) -> list[StepResult]:
        results = []
        if self._flight.on:
            self._flight.halt()
        with contextlib.suppress(MemoryError):  # of a step that nobody has asked for
            while (found := self._take()) is not None:
                tokens, elapsed_ns = found
                self._steps += 1
                results.append(StepResult(Sampled(tokens, [None] * len(tokens)), elapsed_ns, 0))
        return results

    def _take(self) -> tuple[list[int], int] | None:
        """Raises MemoryError for a step that found no memory."""
        try:
            return self._flight.take()
        except StepError as error:
            if "memory" in str(error):
                raise MemoryError(str(error)) from error
            raise

    def hold(self) -> None:
        self._flight.hold()

    def release(self) -> None:
        self._flight.release()

    def _begin_run(self, launched: _Launched) -> None:
        batch, arrays = launched.batch, self._arrays
        rows = len(batch.rows)
        arrays.token_ids[:rows] = arrays.out_tokens[:rows]
        arrays.context_len[:rows] += 1
        arrays.positions[:rows] += 1
        if not self._tables_fit(batch):
            columns = max([len(seq.blocks) for seq in batch.rows])
            arrays.reserve(tokens=rows, sequences=rows, rows=rows, columns=columns)
            self._tables_fit(batch)
        self._flight.begin_run(arrays, rows, launched.most, launched.stops)

    def _tables_fit(self, batch: StepBatch) -> bool:
        """Has the block tables as far as they are granted; False: there is no room for them."""
        tables = (id(batch), batch.slots.version)
        if tables == self._tables:
            return True
        rows, columns = len(batch.rows), max([len(seq.blocks) for seq in batch.rows])
        if columns > self._arrays.block_tables.shape[1]:
            return False
        self._arrays.block_tables[:rows, :columns] = batch.slots.blocks[batch.row_slots, :columns]
        self._tables, self._filled = tables, ()
        return True

    def _logprobs(self, batch: StepBatch, tokens: list[int]) -> list[TokenLogprobs | None]:
        rows, arrays = batch.rows, self._arrays
        logprobs: list[TokenLogprobs | None] = [None] * len(rows)
        if rows and self._most_logprobs >= 0:
            for row, seq in enumerate(rows):
                wanted = seq.sampling.logprobs
                if wanted >= 0 and tokens[row] >= 0:
                    wanted = min(wanted, self.vocab_size)
                    logprobs[row] = TokenLogprobs(
                        tokens[row],
                        float(arrays.out_logprobs[row]),
                        arrays.out_top_ids[row, :wanted].tolist(),
                        arrays.out_top_logprobs[row, :wanted].tolist(),
                    )
        return logprobs

    def logits(self, batch: StepBatch) -> NDArray[np.float32]:
        if self._scoring is None:
            self._scoring = self.model.arrays(want_logits=True)
        arrays = self._scoring
        rows = len(batch.sample_rows)
        self._fill_forward(batch, arrays, rows)
        arrays.greedy(rows)
        self.model.step(arrays, tokens=len(batch.token_ids), sequences=len(batch.context_len), rows=rows)
        return arrays.out_logits[:rows].copy()

    def beginning(self, layers: int, num_blocks: int) -> NativeBackend:
        size, shape = self.pool.block_tokens, self.pool.block_shape
        array = new_pool(replace(self.config, layers=layers), self.model.kv_dtype, num_blocks, size)
        pool = NativePool(array, size, None if shape is None else shape._replace(layers=layers))
        return NativeBackend(self.model.beginning(layers, array), pool, fingerprint=bytes(32), limits=self._limits)

    def ring_at_start(self, bell: int) -> bool:
        if self._flight.ahead:  # the next step has begun, or has ended even
            self._flight.ring_at_wait(bell)
        else:
            self.model.ring_at_start(bell)
        return bell != 0

    def touch(self, first: int, count: int) -> bool:
        self.model.touch(first, count)
        return True

    def out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def framework_bytes(self) -> int:
        return resident_bytes()

    def relieve(self) -> None:
        """Nothing is held in reserve."""

    def warm_up(self, max_seqs: int) -> None:
        """Nothing is compiled or captured; buffers grow with the first steps."""

    def kernel_calls(self) -> Mapping[tuple[str, str, str], int]:
        return {self._calls: self._steps}

    def gauges(self) -> Mapping[str, tuple[str, Callable[[], float]]]:
        return {}

    def _step(self, batch: StepBatch, arrays: StepArrays) -> None:
        rows = len(batch.rows)
        table, columns = batch.slots, batch.block_tables.shape[1]
        filled = (id(table), table.version, columns, batch.row_slots.tobytes(), batch.sample_rows.tobytes())
        decodes = batch.positions is batch.context_len and len(batch.token_ids) == rows
        if decodes and filled == self._filled:
            arrays.token_ids[:rows] = batch.token_ids
            arrays.context_len[:rows] = arrays.positions[:rows] = batch.context_len
        else:
            self._fill_forward(batch, arrays, rows)
            self._fill_sampling(batch, arrays, rows)
            self._filled = filled if decodes and not table.alters[batch.row_slots].any() else ()
        self._tables = None
        self._flight.begin(arrays, tokens=len(batch.token_ids), sequences=len(batch.context_len), rows=rows)

    def _fill_forward(self, batch: StepBatch, arrays: StepArrays, rows: int) -> None:
        tokens, sequences = len(batch.token_ids), len(batch.context_len)
        columns = batch.block_tables.shape[1]
        if (
            tokens > len(arrays.token_ids)
            or sequences > len(arrays.context_len)
            or rows > len(arrays.sample_rows)
            or columns > arrays.block_tables.shape[1]
        ):
            arrays.reserve(tokens=tokens, sequences=sequences, rows=max(1, rows), columns=columns)
        arrays.token_ids[:tokens] = batch.token_ids
        arrays.query_start[: sequences + 1] = batch.query_start
        arrays.context_len[:sequences] = batch.context_len
        arrays.block_tables[:sequences, :columns] = batch.block_tables
        arrays.sample_rows[:rows] = batch.sample_rows

    def _fill_sampling(self, batch: StepBatch, arrays: StepArrays, rows: int) -> None:
        table, slots = batch.slots, batch.row_slots
        for name in PARAMETERS:
            getattr(arrays, name)[:rows] = getattr(table, name)[slots]
        arrays.positions[:rows] = batch.positions
        arrays.history_start[: rows + 1] = 0
        arrays.bias_start[: rows + 1] = 0
        most = self._most_logprobs = int(arrays.logprobs[:rows].max(initial=-1))
        if most > arrays.out_top_ids.shape[1]:
            arrays.reserve(tokens=1, sequences=1, rows=rows, columns=1, top=min(most, self.vocab_size))
        if table.alters[slots].any():
            self._fill_changes(batch, arrays, rows)

    def _fill_changes(self, batch: StepBatch, arrays: StepArrays, rows: int) -> None:
        """Histories of the rows with penalties; biases, and -inf for the ends of rows that are below their least length."""
        histories = [len(seq.tokens) if seq.sampling.has_penalties else 0 for seq in batch.rows]
        biases = [seq.biases() for seq in batch.rows]
        sizes = {"history": max(1, sum(histories)), "bias": max(1, sum(map(len, biases)))}
        arrays.reserve(tokens=1, sequences=1, rows=rows, columns=1, **sizes)
        np.cumsum(histories, out=arrays.history_start[1 : rows + 1])
        np.cumsum([len(row) for row in biases], out=arrays.bias_start[1 : rows + 1])
        for row, (seq, length) in enumerate(zip(batch.rows, histories, strict=True)):
            start = arrays.history_start[row]
            arrays.history[start : start + length] = batch.slots.tokens[seq.slot, :length]
            start, end = arrays.bias_start[row], arrays.bias_start[row + 1]
            arrays.bias_ids[start:end] = list(biases[row])
            arrays.bias_values[start:end] = list(biases[row].values())
