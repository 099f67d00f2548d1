"""KvView: token ranges of a block table as float32, whatever the pool keeps them in. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_gpuworker.backends.blocks import BlockPool

Values = NDArray[np.float32]


class KvView:
    """Reads and writes [layers, 2 (key, value), kv_heads, tokens, head_dim] of a pool of bfloat16 or float32."""

    def __init__(self, pool: BlockPool) -> None:
        shape = pool.block_shape
        if shape is None:
            raise ValueError("nobody knows what the pool's bytes are")
        self._pool = pool
        self._bf16 = shape.dtype == "bfloat16"
        self._dtype: Any = np.uint16 if self._bf16 else np.float32
        self._shape = (shape.layers, shape.halves, shape.heads, shape.tokens, shape.width)
        self._size = shape.tokens

    def read(self, table: Sequence[int], start: int, count: int, layers: slice = slice(None)) -> Values:
        """Positions [start, start + count) of a table, for the layers asked for."""
        parts = [
            self._array(block)[layers, :, :, first:last] for block, first, last, _ in self._spans(table, start, count)
        ]
        raw = np.concatenate(parts, axis=3)
        return (raw.astype(np.uint32) << 16).view(np.float32) if self._bf16 else raw

    def write(self, table: Sequence[int], start: int, values: Values, layers: slice = slice(None)) -> None:
        """Replaces positions [start, start + tokens of `values`) for the layers given. The caller holds the blocks."""
        raw = _to_bf16(values) if self._bf16 else values
        for block, first, last, at in self._spans(table, start, values.shape[3]):
            part = raw[:, :, :, at : at + last - first]
            held = self._pool.host_array(block)
            if held is not None:
                held.view(self._dtype).reshape(self._shape)[layers, :, :, first:last] = part
                continue
            array = self._array(block).copy()
            array[layers, :, :, first:last] = part
            self._pool.write_block(block, array.tobytes())

    def _array(self, block: int) -> NDArray[Any]:
        held = self._pool.host_array(block)
        raw = held if held is not None else np.frombuffer(self._pool.read_block(block), np.uint8)
        array: NDArray[Any] = raw.view(self._dtype).reshape(self._shape)
        return array

    def _spans(self, table: Sequence[int], start: int, count: int) -> Iterator[tuple[int, int, int, int]]:
        """(block, first and last + 1 token in it, tokens before it) of a range."""
        at = start
        while at < start + count:
            first = at % self._size
            last = min(self._size, first + start + count - at)
            yield table[at // self._size], first, last, at - start
            at += last - first


def _to_bf16(values: Values) -> NDArray[np.uint16]:
    """Rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
