"""Backend: what computes a step. The engine hands it numpy arrays and plain objects, and knows nothing else of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo_gpuworker.backends.blocks import BlockPool
from octavo_gpuworker.backends.limits import Limits
from octavo_gpuworker.batch import StepBatch
from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.profile import Profiler
from octavo_gpuworker.sampled import Sampled


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step sampled, one entry per row of the batch; nanoseconds of the model and of the sampler."""

    sampled: Sampled
    forward_ns: int
    sample_ns: int


class Backend(Protocol):
    """One loaded model and its KV pool. All methods but `pool.read_block` are called by one thread at a time."""

    @property
    def name(self) -> str:
        """torch or native."""

    @property
    def pool(self) -> BlockPool: ...

    @property
    def config(self) -> ModelConfig: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_position(self) -> int:
        """Positions the model was trained for."""

    @property
    def fingerprint(self) -> bytes:
        """32 bytes: whatever decides the pool's bytes for given token ids, its layout included; the root of block keys."""

    @property
    def pipelined(self) -> bool:
        """`launch` returns while the step runs, and takes tokens of the step before that only the device knows."""

    def launch(self, batch: StepBatch, before: Any = None) -> Any:
        """Begins a step and answers with a handle for `result`; the batch's arrays may be reused once `result` returned.

        `before`: the handle of the step whose rows `batch.pending` names, launched last and not read yet.
        Errors for which `out_of_memory` holds leave the pool's other blocks whole; any other one is final.
        """

    @property
    def repeats(self) -> bool:
        """It has `again`, `land` and `hold`."""

    def again(self, launched: Any, most: int, stops: frozenset[int]) -> Any:
        """Begins the step after `launched`, which was the last one, was read, and gave one token to each of its sequences, with no
        more than plain sampling: each computes that token and draws the next. Tables are as `launched`'s slots have them now.

        It may go on by itself up to `most` such steps, but not beyond one that draws a token of `stops`; each `again` is one of them.
        """

    def land(self) -> list[StepResult]:
        """Ends what `again` has begun by itself; what was not asked for yet, oldest first. Before anything but `again`."""

    def hold(self) -> None:
        """Begins no more steps by itself until `release`. From any thread."""

    def release(self) -> None:
        """Takes `hold` back."""

    @property
    def computes_aside(self) -> bool:
        """On threads of its own: the one that calls it only waits for them."""

    def ring_at_start(self, bell: int) -> bool:
        """The next launch writes to this eventfd once its threads are at work, or once it has failed; False: it does not."""

    def touch(self, first: int, count: int) -> bool:
        """Has the system back blocks [first, first + count) of the pool with memory now, their bytes unchanged, on cores that nobody
        else wants; False where that cannot be asked for. From any thread, beside steps."""

    def result(self, launched: Any) -> StepResult:
        """Waits for a launched step. Steps end in the order of their launches. Raises as `launch`."""

    def logits(self, batch: StepBatch) -> NDArray[np.float32]:
        """[L, vocab] raw logits of the batch's sample_rows, after the same step; nothing is drawn. For benchmarks and tests."""

    def beginning(self, layers: int, num_blocks: int) -> Backend:
        """The model's first `layers` layers, with the same weights, over a pool of their own. Only `logits` of steps that
        sample nothing mean anything there: they write the KV that the whole model would."""

    @property
    def limits(self) -> Limits:
        """What bounds its speed; for benchmarks."""

    @property
    def profiler(self) -> Profiler | None:
        """What records steps for `octavo profile`; None where the backend has none."""

    def out_of_memory(self, error: BaseException) -> bool:
        """Whether the error says that an allocation failed."""

    def framework_bytes(self) -> int:
        """Memory that the framework holds where the pool lies, the pool included: of the device, or of this process."""

    def relieve(self) -> None:
        """Gives back what is held in reserve, after an allocation failed."""

    def warm_up(self, max_seqs: int) -> None:
        """What must have run once before steps of up to `max_seqs` sequences are as fast as later ones."""

    def kernel_calls(self) -> Mapping[tuple[str, str, str], int]:
        """Calls so far per (operation, implementation, reason): chosen, or the reason of a fallback."""

    def gauges(self) -> Mapping[str, tuple[str, Callable[[], float]]]:
        """Figures of its own: name below octavo_worker_ -> help text and reader."""
