"""TorchBackend: the decoder of model/ over a KvPool, on any device that torch knows; the only way from the engine to torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray
from octavo.memory import resident_bytes
from torch import Tensor

from octavo_gpuworker.backends.backend import StepResult
from octavo_gpuworker.backends.limits import Limits
from octavo_gpuworker.backends.torch_limits import torch_limits
from octavo_gpuworker.backends.torch_profiler import TorchProfiler
from octavo_gpuworker.batch import StepBatch
from octavo_gpuworker.device_sampler import Drawn, draw_on_device, read_drawn, sampler_of
from octavo_gpuworker.graphs import GraphedForward, graphed
from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.model.decoder import Decoder
from octavo_gpuworker.model.inputs import StepInputs
from octavo_gpuworker.model.pool import KvPool
from octavo_gpuworker.sampled import Sampled
from octavo_gpuworker.sampler import sample
from octavo_gpuworker.sequence import Sequence
from octavo_gpuworker.step_buffer import pack


class Forward(Protocol):
    """What is needed of a decoder, so that a test may put one of its own in its place."""

    config: ModelConfig
    device: torch.device

    def forward(self, inputs: StepInputs, pool: KvPool) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class _Launched:
    batch: StepBatch
    logits: Tensor
    drawn: Drawn | None
    """What a pipelined launch drew; else `result` draws."""
    forward_ns: int


class TorchBackend:
    """A Backend; see there. On a GPU `launch` only enqueues, and `result` waits once, for the sampled tokens."""

    name = "torch"

    def __init__(
        self,
        decoder: Forward,
        pool: KvPool,
        *,
        graphs: GraphedForward | None = None,
        sampler: Callable[[Tensor, Rows[Sequence]], Sampled] = sample,
        fingerprint: bytes = bytes(32),
        kernel_calls: Callable[[], Mapping[tuple[str, str, str], int]] = dict,
        profiler: TorchProfiler | None = None,
        draw: Callable[[Tensor, Rows[Sequence]], Drawn] | None = None,
    ) -> None:
        """`draw`: enqueues a draw and leaves its tokens on the device, so that steps can be pipelined; None: they are not."""
        self.decoder: Forward = decoder
        self.pool = pool
        self.graphs = graphs
        self.fingerprint = fingerprint
        self._sample = sampler
        self._draw = draw
        self._kernel_calls = kernel_calls
        self.profiler = profiler

    @property
    def config(self) -> ModelConfig:
        return self.decoder.config

    @property
    def vocab_size(self) -> int:
        return self.decoder.config.vocab_size

    @property
    def max_position(self) -> int:
        return self.decoder.config.max_position

    @property
    def pipelined(self) -> bool:
        return self._draw is not None

    def launch(self, batch: StepBatch, before: _Launched | None = None) -> _Launched:
        began_ns = time.monotonic_ns()
        if self.profiler is not None:
            self.profiler.begin_step()
        forward: Forward | GraphedForward = self.graphs or self.decoder
        inputs = step_inputs(batch, forward.device)
        if inputs.pending is not None and before is not None and before.drawn is not None:
            inputs.drawn = before.drawn.tokens
            if self.graphs is None:
                inputs.place_drawn()
        logits = forward.forward(inputs, self.pool)
        drawn = self._draw(logits, batch.rows) if self._draw is not None and batch.rows else None
        return _Launched(batch, logits, drawn, time.monotonic_ns() - began_ns)

    def result(self, launched: _Launched) -> StepResult:
        began_ns = time.monotonic_ns()
        rows = launched.batch.rows
        if launched.drawn is not None:
            sampled = read_drawn(launched.drawn, rows)
        else:
            sampled = self._sample(launched.logits, rows)
        if self.profiler is not None:
            self.profiler.end_step()
        return StepResult(sampled, launched.forward_ns, time.monotonic_ns() - began_ns)

    def logits(self, batch: StepBatch) -> NDArray[np.float32]:
        logits = self.decoder.forward(step_inputs(batch, self.decoder.device), self.pool)
        array: NDArray[np.float32] = logits.float().cpu().numpy()
        return array

    def beginning(self, layers: int, num_blocks: int) -> TorchBackend:
        if not isinstance(self.decoder, Decoder):
            raise TypeError("only a Decoder can be cut short")
        short, pool = self.decoder.beginning(layers), self.pool
        return TorchBackend(short, KvPool(short.config, num_blocks, pool.block_tokens, pool.dtype, pool.device))

    @property
    def limits(self) -> Limits:
        return torch_limits(self.decoder, self.pool)

    @property
    def repeats(self) -> bool:
        return False

    def again(self, launched: Any, most: int, stops: frozenset[int]) -> Any:
        raise NotImplementedError("torch's steps are launched one by one")

    def land(self) -> list[StepResult]:
        return []

    def hold(self) -> None:
        """It begins no step by itself."""

    def release(self) -> None:
        """It begins no step by itself."""

    @property
    def computes_aside(self) -> bool:
        return False

    def ring_at_start(self, bell: int) -> bool:
        return False

    def touch(self, first: int, count: int) -> bool:
        """torch says nothing of its memory's pages, and a device backs them at once."""
        return False

    def out_of_memory(self, error: BaseException) -> bool:
        """On a GPU a type of its own; in torch's CPU allocator a RuntimeError with these words."""
        words = str(error)
        return (
            isinstance(error, MemoryError | torch.OutOfMemoryError)
            or "can't allocate memory" in words
            or "not enough memory" in words
        )

    def framework_bytes(self) -> int:
        if self.decoder.device.type == "cuda":
            return int(torch.cuda.memory_reserved(self.decoder.device))
        return resident_bytes()

    def relieve(self) -> None:
        if self.decoder.device.type == "cuda":
            torch.cuda.empty_cache()

    def warm_up(self, max_seqs: int) -> None:
        if self.graphs is not None:
            self.graphs.warm_up(max_seqs)

    def kernel_calls(self) -> Mapping[tuple[str, str, str], int]:
        return self._kernel_calls()

    def gauges(self) -> Mapping[str, tuple[str, Callable[[], float]]]:
        if self.graphs is None:
            return {}
        stats = self.graphs.stats
        return {
            "graph_replays": ("Steps run by replaying a captured graph.", stats.replays.total),
            "graph_eager_steps": ("Steps that no captured graph held.", stats.eager.total),
            "graph_captures": ("Graphs captured.", lambda: stats.captures),
            "graph_padded_tokens": ("Rows of padding in replayed steps.", lambda: stats.padded_tokens),
            "graph_hit_ratio": ("Replayed steps over all steps.", lambda: stats.hit_rate),
        }


def torch_backend(decoder: Decoder, pool: KvPool, *, cuda_graphs: bool, max_model_len: int) -> TorchBackend:
    """The decoder with the sampler that its kernel table chose, behind graphs where they can work."""
    layout = f"{pool.block_tokens} {pool.dtype} {tuple(pool.tensor.shape[1:])}".encode()
    kernels = decoder.kernels
    return TorchBackend(
        decoder,
        pool,
        graphs=graphed(decoder, pool, enabled=cuda_graphs, max_model_len=max_model_len),
        sampler=sampler_of(kernels),
        fingerprint=blake3(decoder.fingerprint + layout).digest(),
        kernel_calls=lambda: kernels.kernel_calls_by_reason,
        profiler=TorchProfiler(kernels, decoder.device),
        draw=partial(draw_on_device, kernels.sample) if decoder.device.type == "cuda" else None,
    )


def step_inputs(batch: StepBatch, device: torch.device) -> StepInputs:
    """The batch's arrays as tensors on `device`, by one copy."""
    size = batch.slots.block_tokens
    counts = np.diff(batch.query_start)
    of_token = np.repeat(np.arange(len(counts)), counts)
    first = batch.context_len - counts - batch.query_start[:-1]
    positions = np.arange(len(batch.token_ids), dtype=np.int64) + first[of_token]
    blocks = batch.block_tables[of_token, positions // size].astype(np.int64)
    arrays = {
        "token_ids": batch.token_ids.astype(np.int64),
        "positions": positions,
        "slot_mapping": blocks * size + positions % size,
        "sample_rows": batch.sample_rows.astype(np.int64),
        "query_start": batch.query_start,
        "context_len": batch.context_len,
        "block_tables": batch.block_tables,
    }
    if batch.pending is not None:
        arrays["pending"] = batch.pending
    tensors: dict[str, Any] = dict(zip(arrays, pack(list(arrays.values()), device), strict=True))
    return StepInputs(**tensors, new_tokens=counts.tolist(), contexts=batch.context_len.tolist())
