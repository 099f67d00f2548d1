"""Decode steps as captured graphs: one per (batch, context) bucket, replayed over static inputs that one packed copy updates.

A captured step is a decode step of exactly `sequences` sequences; a smaller batch is padded with sequences that have no new
token (equal neighbours in query_start), whose KV goes to the null block and whose logits are cut off. Everything that the
kernels read per step lies in device memory; what the host decides (grids, splits) is fixed by the bucket's largest context.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.model.decoder import Decoder
from octavo_gpuworker.model.inputs import StepInputs
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.step_buffer import StepBuffer, pack

BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Sequences per captured step: at most half of a batch is padding, a third from 16 on."""
LEAST_CONTEXT: Final = 1024
"""Smallest context bucket, in tokens; each next one is twice as long, since only grids and tables depend on it."""


class Captured(Protocol):
    """One captured step: `replay` runs it again over its inputs' memory and leaves the result where the first run did."""

    def replay(self) -> None: ...


class CaptureBackend(Protocol):
    """How a step is captured; injected, so that buckets and counters are tested without a GPU."""

    def capture(self, run: Callable[[], Tensor]) -> tuple[Captured, Tensor]:
        """Warms `run` up and captures it once: the graph, and the tensor that every replay writes."""


class CudaCapture:
    """torch.cuda.CUDAGraph; all graphs share one memory pool, since only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.cuda.graph_pool_handle()

    def capture(self, run: Callable[[], Tensor]) -> tuple[Captured, Tensor]:
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(2):  # compiles kernels and lets cuBLAS take its workspace
                run()
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            result = run()
        return graph, result


@dataclass(slots=True)
class GraphStats:
    """What ran how, since the start."""

    replays: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Per (batch bucket, context bucket)."""
    eager: Counter[str] = field(default_factory=Counter)
    """Steps that ran without a graph, per reason."""
    captures: int = 0
    tokens: int = 0
    """New tokens of replayed steps, without padding."""
    padded_tokens: int = 0

    @property
    def hit_rate(self) -> float:
        """Replayed steps over all; 0 before the first."""
        hits = self.replays.total()
        return hits / (hits + self.eager.total()) if hits else 0.0


class Forward(Protocol):
    """What GraphedForward needs of a decoder."""

    config: ModelConfig
    device: torch.device

    def forward(self, inputs: StepInputs, pool: KvPool) -> Tensor: ...


@dataclass(slots=True)
class _Step:
    buffer: StepBuffer
    graph: Captured
    logits: Tensor


def bucket_of(buckets: Sequence[int], count: int) -> int | None:
    """The smallest bucket that holds `count`; None when none does. `buckets` ascend."""
    index = bisect_left(buckets, count)
    return buckets[index] if index < len(buckets) else None


def context_buckets(max_model_len: int) -> tuple[int, ...]:
    """LEAST_CONTEXT, doubled up to the first that covers `max_model_len`."""
    buckets = [LEAST_CONTEXT]
    while buckets[-1] < max_model_len:
        buckets.append(2 * buckets[-1])
    return tuple(buckets)


class GraphedForward:
    """Runs a step by replay where a bucket holds it, else through the decoder. Takes inputs on the host, see `forward`."""

    def __init__(
        self,
        decoder: Forward,
        pool: KvPool,
        backend: CaptureBackend,
        *,
        max_model_len: int,
        batch_buckets: Sequence[int] = BATCH_BUCKETS,
    ) -> None:
        self._decoder, self._pool, self._backend = decoder, pool, backend
        self._batches = tuple(batch_buckets)
        self._contexts = context_buckets(max_model_len)
        self._steps: dict[tuple[int, int], _Step] = {}
        self.stats = GraphStats()
        self.config = decoder.config
        self.device = torch.device("cpu")
        """Where `forward` wants its inputs: the copy to the GPU is its own."""

    def warm_up(self, max_seqs: int) -> None:
        """Captures every bucket up to `max_seqs` sequences, the largest first, so that the small ones reuse its memory."""
        last = bucket_of(self._batches, max_seqs) or self._batches[-1]
        for context in reversed(self._contexts):
            for batch in reversed(self._batches[: self._batches.index(last) + 1]):
                self._step(batch, context)

    def choose(self, inputs: StepInputs) -> tuple[int, int] | str:
        """The (batch, context) bucket for a step, or the reason why it runs eagerly."""
        new_tokens, contexts = inputs.new_tokens, inputs.contexts
        if new_tokens is None or contexts is None:
            return "lengths unknown to the host"
        if not new_tokens:
            return "empty"
        if any(new != 1 for new in new_tokens):
            return "prefill"
        if inputs.sample_rows.shape[0] != len(new_tokens):
            return "not every row is sampled"
        batch = bucket_of(self._batches, len(new_tokens))
        context = bucket_of(self._contexts, max(contexts))
        if batch is None:
            return "more sequences than the largest bucket"
        return "longer context than the largest bucket" if context is None else (batch, context)

    def forward(self, inputs: StepInputs, pool: KvPool) -> Tensor:
        """As Decoder.forward, for inputs in host memory. The logits of a replay are overwritten by the next one.

        ValueError: another pool than the one whose addresses were captured.
        """
        if pool is not self._pool:
            raise ValueError("graphs were captured over another KV pool; make a GraphedForward per pool")
        bucket = self.choose(inputs)
        if isinstance(bucket, str):
            self.stats.eager[bucket] += 1
            return self._decoder.forward(_moved(inputs, self._decoder.device), pool)
        step = self._step(*bucket)
        count = len(inputs.contexts or ())
        step.buffer.load(inputs)
        step.graph.replay()
        self.stats.replays[bucket] += 1
        self.stats.tokens += count
        self.stats.padded_tokens += bucket[0] - count
        return step.logits[:count]

    def _step(self, batch: int, context: int) -> _Step:
        found = self._steps.get((batch, context))
        if found is None:
            columns = -(-context // self._pool.block_tokens)
            buffer = StepBuffer(batch, columns, self._decoder.device)
            # Lengths of a full bucket: grids and splits then suit every batch and context inside it.
            static = buffer.inputs(new_tokens=[1] * batch, contexts=[context] * batch)
            graph, logits = self._backend.capture(lambda: self._decoder.forward(static, self._pool))
            self.stats.captures += 1
            found = self._steps[batch, context] = _Step(buffer, graph, logits)
        return found


def _moved(inputs: StepInputs, device: torch.device) -> StepInputs:
    """The same step on `device` by one packed copy, drawn tokens in their places."""
    arrays = [getattr(inputs, name).numpy() for name in StepBuffer.ORDER]
    arrays += [] if inputs.pending is None else [inputs.pending.numpy()]
    names = (*StepBuffer.ORDER, "pending")
    tensors: dict[str, Any] = dict(zip(names, pack(arrays, device), strict=False))
    moved = replace(inputs, **tensors)
    moved.place_drawn()
    return moved


def graphed(decoder: Decoder, pool: KvPool, *, enabled: bool, max_model_len: int) -> GraphedForward | None:
    """The decoder behind graphs where that can work: a CUDA device, and attention that reads lengths from device memory."""
    attention = next(choice.chosen for choice in decoder.kernels.choices if choice.operation == "paged_attention")
    if not enabled or decoder.device.type != "cuda" or attention != "triton":
        return None
    return GraphedForward(decoder, pool, CudaCapture(decoder.device), max_model_len=max_model_len)
