"""One packed copy of a step's inputs to the device, instead of one launch per array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

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
