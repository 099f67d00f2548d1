"""The machine's peaks on the host, by a matrix product and a sum: what a backend that knows better puts in their place."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from octavo_gpuworker.stepwork import Peaks

EDGE = 768
READ_BYTES = 128 * 2**20
RUNS = 3


def measure_host_peaks() -> Peaks:
    """The best of a few runs, all threads that numpy has; about 0.2 s. float32 products: bf16 units may do better."""
    left = np.full((EDGE, EDGE), 0.5, np.float32)
    values = np.ones(READ_BYTES // 8, np.float64)
    return Peaks(
        bytes_per_s=READ_BYTES / min(_seconds(lambda: values.sum()) for _ in range(RUNS)),
        flops_per_s=2 * EDGE**3 / min(_seconds(lambda: left @ left) for _ in range(RUNS)),
    )


def _seconds(run: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    run()
    return max(1e-9, time.perf_counter() - began_s)
