"""One packed copy of a step's inputs to the device, instead of one launch per array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from octavo_gpuworker.model.inputs import StepInputs

ALIGNMENT_BYTES: Final = 16
"""Each array starts where a kernel may read whole vectors."""
TORCH_TYPES: Final = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float32): torch.float32,
}


def pack(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """int32, int64 and float32 arrays as tensors on `device`: views of one buffer that was copied once; KeyError for another dtype.

    The copy is asynchronous on a GPU: its source is pinned and torch keeps it until the copy is done.
    """
    sizes = [-(-array.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for array in arrays]
    host = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
    target = host.numpy()
    start = 0
    for array, size in zip(arrays, sizes, strict=True):
        target[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        start += size
    moved = host.to(device, non_blocking=True)
    views, start = [], 0
    for array, size in zip(arrays, sizes, strict=True):
        raw = moved[start : start + array.nbytes].view(TORCH_TYPES[array.dtype])
        views.append(raw.view(array.shape))
        start += size
    return views


class StepBuffer:
    """Static device inputs of a captured decode step of up to `sequences` sequences, updated by one copy.

    Before the first `load` it is a step of nothing but padding.
    """

    ORDER: Final = (
        "token_ids",
        "positions",
        "slot_mapping",
        "query_start",
        "context_len",
        "block_tables",
        "sample_rows",
    )
    """StepInputs' tensors in the order of their declaration; `pending` lies behind them."""

    def __init__(self, sequences: int, columns: int, device: torch.device) -> None:
        self.sequences, self.columns = sequences, columns
        wide, narrow = torch.int64, torch.int32
        shapes = {
            "token_ids": ((sequences,), wide),
            "positions": ((sequences,), wide),
            "slot_mapping": ((sequences,), wide),
            "query_start": ((sequences + 1,), narrow),
            "context_len": ((sequences,), narrow),
            "block_tables": ((sequences, columns), narrow),
            "sample_rows": ((sequences,), wide),
            "pending": ((sequences,), wide),
        }
        sizes = {
            name: -(-torch.Size(shape).numel() * dtype.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            for name, (shape, dtype) in shapes.items()
        }
        total = sum(sizes.values())
        # Two on the host: a step may be packed while the copy of the one before has not begun.
        self._hosts = [torch.zeros(total, dtype=torch.uint8, pin_memory=device.type == "cuda") for _ in range(2)]
        self._device = torch.zeros(total, dtype=torch.uint8, device=device)
        views: list[dict[str, Tensor]] = [{}, {}, {}]
        start = 0
        for name, (shape, dtype) in shapes.items():
            end = start + torch.Size(shape).numel() * dtype.itemsize
            for held, memory in zip(views, (*self._hosts, self._device), strict=True):
                held[name] = memory[start:end].view(dtype).view(shape)
            start += sizes[name]
        *self._host_views, self._views = views
        for held in self._host_views:
            held["sample_rows"].copy_(torch.arange(sequences))
        self._device.copy_(self._hosts[0])
        self._turn = 0

    def inputs(self, new_tokens: Sequence[int], contexts: Sequence[int]) -> StepInputs:
        """The step over this buffer's memory, with the lengths that the host shall plan for."""
        views = {name: self._views[name] for name in self.ORDER}
        return StepInputs(**views, new_tokens=new_tokens, contexts=contexts)

    def load(self, inputs: StepInputs) -> None:
        """One decode step of up to `sequences` sequences, in host memory, padded and copied to the device at once.

        The copy is asynchronous: the caller may load one more step before it reads this one's result, and no third.
        """
        count, width = inputs.block_tables.shape
        self._turn = 1 - self._turn
        held = self._host_views[self._turn]
        for name in ("token_ids", "positions", "slot_mapping", "context_len"):
            held[name][:count] = getattr(inputs, name)
            held[name][count:] = 0  # position 0 of the null block
        held["query_start"][: count + 1] = inputs.query_start
        held["query_start"][count + 1 :] = count
        held["block_tables"][:count, :width] = inputs.block_tables
        held["pending"].fill_(-1)
        if inputs.pending is not None:
            held["pending"][:count] = inputs.pending
        self._device.copy_(self._hosts[self._turn], non_blocking=True)
        if inputs.drawn is not None:
            replace(self.inputs([], []), pending=self._views["pending"], drawn=inputs.drawn).place_drawn()
