"""KvView: token ranges of a block table as float32, whatever the pool keeps them in. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_gpuworker.backends.blocks import BlockPool

Values = NDArray[np.float32]


class KvView:
    """Reads and writes [layers, 2 (key, value), kv_heads, tokens, head_dim] of a pool of bfloat16, float32, or int8 with a scale
    per token and head: what is turned there is taken apart, turned, and rounded anew with a scale of its own.
    """

    def __init__(self, pool: BlockPool) -> None:
        shape = pool.block_shape
        if shape is None:
            raise ValueError("nobody knows what the pool's bytes are")
        self._pool = pool
        self._kind = shape.dtype
        self._dtype: Any = {"bfloat16": np.uint16, "float32": np.float32, "int8": np.int8}[shape.dtype]
        self._shape = (shape.layers, shape.halves, shape.heads, shape.tokens, shape.width)
        self._size = shape.tokens

    def read(self, table: Sequence[int], start: int, count: int, layers: slice = slice(None)) -> Values:
        """Positions [start, start + count) of a table, for the layers asked for."""
        parts = []
        for block, first, last, _ in self._spans(table, start, count):
            values, scales = self._arrays(self._bytes(block))
            part = values[layers, :, :, first:last]
            if self._kind == "bfloat16":
                part = (part.astype(np.uint32) << 16).view(np.float32)
            elif scales is not None:
                part = part.astype(np.float32) * scales[layers, :, :, first:last, None]
            parts.append(part)
        return np.concatenate(parts, axis=3)

    def write(self, table: Sequence[int], start: int, values: Values, layers: slice = slice(None)) -> None:
        """Replaces positions [start, start + tokens of `values`) for the layers given. The caller holds the blocks."""
        codes, steps = self._encoded(values)
        for block, first, last, at in self._spans(table, start, values.shape[3]):
            own = slice(at, at + last - first)
            self._put(block, first, last, codes[:, :, :, own], None if steps is None else steps[:, :, :, own], layers)

    def copy(self, source: Sequence[int], first: int, table: Sequence[int], start: int, count: int) -> None:
        """Positions [first, first + count) of one table to [start, ...) of another, as they are. The caller holds both."""
        at = 0
        while at < count:
            there, here = (first + at) % self._size, (start + at) % self._size
            size = min(count - at, self._size - there, self._size - here)
            values, scales = self._arrays(self._bytes(source[(first + at) // self._size]))
            steps = None if scales is None else scales[:, :, :, there : there + size]
            block = table[(start + at) // self._size]
            self._put(block, here, here + size, values[:, :, :, there : there + size], steps, slice(None))
            at += size

    def _put(
        self, block: int, first: int, last: int, codes: NDArray[Any], steps: NDArray[Any] | None, layers: slice
    ) -> None:
        held = self._pool.host_array(block)
        raw = held if held is not None else self._bytes(block).copy()
        values, scales = self._arrays(raw)
        values[layers, :, :, first:last] = codes
        if scales is not None:
            scales[layers, :, :, first:last] = steps
        if held is None:
            self._pool.write_block(block, raw.tobytes())

    def _encoded(self, values: Values) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        """As the pool keeps them; with the scales of an int8 one."""
        if self._kind == "bfloat16":
            return _to_bf16(values), None
        if self._kind == "float32":
            return values, None
        largest = np.abs(values).max(axis=-1)
        steps = np.where(largest > 0, largest / np.float32(127), np.float32(1)).astype(np.float32)
        return np.rint(values / steps[..., None]).clip(-127, 127).astype(np.int8), steps

    def _bytes(self, block: int) -> NDArray[np.uint8]:
        held = self._pool.host_array(block)
        return held if held is not None else np.frombuffer(self._pool.read_block(block), np.uint8)

    def _arrays(self, raw: NDArray[np.uint8]) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        """The values of a block's bytes, and the scales [layers, 2, kv_heads, tokens] that stand behind those of int8."""
        size = math.prod(self._shape) * np.dtype(self._dtype).itemsize
        values: NDArray[Any] = raw[:size].view(self._dtype).reshape(self._shape)
        scales = raw[size:].view(np.float32).reshape(self._shape[:-1]) if self._kind == "int8" else None
        return values, scales

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
