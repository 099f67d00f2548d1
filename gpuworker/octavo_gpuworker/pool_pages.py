"""PoolPages: the KV pool's memory is taken from the system after the start, beside other work.

The system backs a page with memory when it is first written. Within a step that costs each new block its time: on a virtual machine
half a second per 250 MB were measured, 5% of the steps that fill the pool for the first time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from octavo_gpuworker.backends.backend import Backend
from octavo_gpuworker.memory import free_share

SLICE_BYTES: Final = 4 * 2**20
"""Between two looks whether to go on."""
LEAST_FREE: Final = 0.1
"""Of the system's memory, or of what this process's group may have: with less left the rest of the pool is taken as it is written."""

log = logging.getLogger(__name__)


class PoolPages:
    """The thread that asks for it, slice by slice. `free` says which part of the memory is left."""

    def __init__(self, backend: Backend, free: Callable[[], float] = free_share) -> None:
        self._backend = backend
        self._free = free
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._main, name="pool-pages", daemon=True)
        self.taken = 0
        """Blocks so far, from the first on."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends it after the slice that it is at; blocks until then."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _main(self) -> None:
        pool = self._backend.pool
        step = max(1, SLICE_BYTES // pool.block_bytes)
        while self.taken < pool.num_blocks and not self._stopping.is_set():
            if self._free() < LEAST_FREE:
                size = (pool.num_blocks - self.taken) * pool.block_bytes / 2**20
                log.info("little memory is free: %.0f MiB of the KV pool are taken as they are written", size)
                return
            count = min(step, pool.num_blocks - self.taken)
            self._backend.touch(self.taken, count)
            self.taken += count
