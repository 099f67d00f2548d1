"""Triton's interpreter for the tests of this folder: triton reads the switch when it is imported and when a kernel is defined."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from octavo_gpuworker.kernels.paged_batch import PagedBatch, paged_batch
from octavo_gpuworker.kernels.store_kv import quantize
from torch import Tensor


def interpret() -> None:
    """Switches this process, and not its children, to the interpreter; refuses where triton was imported without it."""
    loaded = "triton" in sys.modules
    os.environ["TRITON_INTERPRET"] = "1"
    import triton

    if loaded and not isinstance(triton.language.cdiv, triton.runtime.interpreter.InterpretedFunction):
        raise pytest.UsageError("triton was imported before tests/kernels/triton could switch to its interpreter")
    triton.knobs.propagate_env = False
    triton.knobs.runtime.interpret = True
    triton.knobs.propagate_env = True
    del os.environ["TRITON_INTERPRET"]
    from octavo_gpuworker.kernels.triton.interpreter import repair_interpreter

    repair_interpreter()


interpret()


@dataclass(frozen=True)
class Shape:
    """One case's shapes; `kv` is the cache's dtype, or None for the queries' own."""

    group: int = 3
    kv_heads: int = 2
    dim: int = 32
    block: int = 16
    window: int | None = None
    soft_cap: float = 0.0
    dtype: torch.dtype = torch.float32
    kv: torch.dtype | None = None
    splits: int | None = None


class Case:
    """A batch over scattered blocks with its float64 answer; slots that no sequence owns hold NaN. `work` is (new, context) per sequence; the pool is one layer cut out of three, so its strides have gaps."""

    def __init__(self, work: list[tuple[int, int]], shape: Shape) -> None:
        self.work, self.shape = work, shape
        cache = shape.kv or shape.dtype
        counts = [-(-context // shape.block) for _, context in work]
        order = (torch.randperm(sum(counts)) + 1).tolist()
        per_head = (sum(counts) + 1, 3, 2, shape.kv_heads, shape.block)
        quantized = cache.itemsize == 1
        poison = torch.full((*per_head, shape.dim), float("nan"))
        self.pool = torch.full((*per_head, shape.dim), 99, dtype=cache) if cache == torch.int8 else poison.to(cache)
        self.scales = torch.full(per_head, float("nan")) if quantized else None
        tables = torch.full((len(work), max(counts, default=0) + 2), 2**30, dtype=torch.int32)
        self.kv: list[Tensor] = []
        for row, ((_, context), count) in enumerate(zip(work, counts, strict=True)):
            mine, order = order[:count], order[count:]
            tables[row, :count] = torch.tensor(mine)
            self.kv.append(self._fill(mine, context, cache))
        starts = [0, *itertools.accumulate(new for new, _ in work)]
        self.q = torch.randn(starts[-1], shape.group * shape.kv_heads, shape.dim).to(shape.dtype)
        self.batch: PagedBatch = paged_batch(
            torch.tensor(starts, dtype=torch.int32),
            torch.tensor([context for _, context in work], dtype=torch.int32),
            tables,
            [new for new, _ in work],
            [context for _, context in work],
            block_tokens=shape.block,
            scale=shape.dim**-0.5,
            window=shape.window,
            soft_cap=shape.soft_cap,
            processors=4,
        )
        self.batch.splits = shape.splits
        self.starts = starts

    def _fill(self, blocks: list[int], context: int, cache: torch.dtype) -> Tensor:
        """Writes random keys and values into layer 1 and returns them as the cache holds them, [2, kv_heads, context, D]."""
        held = torch.randn(2, self.shape.kv_heads, context, self.shape.dim)
        scales = torch.ones(held.shape[:-1])
        if self.scales is not None:
            held, scales = quantize(held * 3, cache)
        held = held.to(cache)
        for position in range(context):
            block, offset = blocks[position // self.shape.block], position % self.shape.block
            self.pool[block, 1, :, :, offset] = held[:, :, position]
            if self.scales is not None:
                self.scales[block, 1, :, :, offset] = scales[:, :, position]
        return held.double() * scales.double()[..., None]

    @property
    def layer(self) -> Tensor:
        return self.pool[:, 1]

    @property
    def layer_scales(self) -> Tensor | None:
        return None if self.scales is None else self.scales[:, 1]

    def reference(self) -> Tensor:
        rows = [self.q.new_empty(0, self.q.shape[1] * self.q.shape[2], dtype=torch.float64)]
        for (new, context), kv, start in zip(self.work, self.kv, self.starts[:-1], strict=True):
            queries = self.q[start : start + new].double()
            keys, values = kv.repeat_interleave(self.shape.group, dim=1)
            scores = torch.einsum("thd,hcd->thc", queries, keys) * self.batch.scale
            if self.shape.soft_cap:
                scores = torch.tanh(scores / self.shape.soft_cap) * self.shape.soft_cap
            at = torch.arange(context - new, context)[:, None]
            seen = torch.arange(context) <= at
            if self.shape.window is not None:
                seen &= torch.arange(context) > at - self.shape.window
            weights = scores.masked_fill(~seen[:, None], float("-inf")).softmax(-1)
            rows.append(torch.einsum("thc,hcd->thd", weights, values).flatten(1))
        return torch.cat(rows)


@pytest.fixture
def make_case() -> Callable[..., Case]:
    """make_case(work, group=..., window=..., ...): see Shape."""
    return lambda work, **shape: Case(work, Shape(**shape))
