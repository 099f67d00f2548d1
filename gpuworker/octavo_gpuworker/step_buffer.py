"""One packed copy of a step's inputs to the device, instead of one launch per array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from octavo_gpuworker.model.inputs import StepInputs

ALIGNMENT_BYTES: Final = 16
"""Each array starts where a kernel may read whole vectors."""
TORCH_TYPES: Final = {np.dtype(np.int64): torch.int64, np.dtype(np.int32): torch.int32}


def pack(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """int32 and int64 arrays as tensors on `device`: views of one buffer that was copied once; KeyError for another dtype.

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
    """StepInputs' tensors in the order of their declaration."""

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
        }
        sizes = {
            name: -(-torch.Size(shape).numel() * dtype.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            for name, (shape, dtype) in shapes.items()
        }
        self._host = torch.zeros(sum(sizes.values()), dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device = torch.zeros_like(self._host, device=device)
        self._host_views: dict[str, Tensor] = {}
        self._views: dict[str, Tensor] = {}
        start = 0
        for name, (shape, dtype) in shapes.items():
            end = start + torch.Size(shape).numel() * dtype.itemsize
            self._host_views[name] = self._host[start:end].view(dtype).view(shape)
            self._views[name] = self._device[start:end].view(dtype).view(shape)
            start += sizes[name]
        self._host_views["sample_rows"].copy_(torch.arange(sequences))
        self._device.copy_(self._host)

    def inputs(self, new_tokens: Sequence[int], contexts: Sequence[int]) -> StepInputs:
        """The step over this buffer's memory, with the lengths that the host shall plan for."""
        return StepInputs(**self._views, new_tokens=new_tokens, contexts=contexts)

    def load(self, inputs: StepInputs) -> None:
        """One decode step of up to `sequences` sequences, in host memory, padded and copied to the device at once.

        The copy is asynchronous: the caller reads the step's result before it loads the next one.
        """
        count, width = inputs.block_tables.shape
        held = self._host_views
        for name in ("token_ids", "positions", "slot_mapping", "context_len"):
            held[name][:count] = getattr(inputs, name)
            held[name][count:] = 0  # position 0 of the null block
        held["query_start"][: count + 1] = inputs.query_start
        held["query_start"][count + 1 :] = count
        held["block_tables"][:count, :width] = inputs.block_tables
        self._device.copy_(self._host, non_blocking=True)
