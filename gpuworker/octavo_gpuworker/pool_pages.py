"""PoolPages: the KV pool's memory is taken from the system after the start, beside other work, as far as there is enough of it.

The system backs a page with memory when it is first written. Within a step that costs each new block its time: on a virtual machine
half a second per 250 MB were measured, 5% of the steps that fill the pool for the first time. And where memory is short a step that
writes one more page gets a process killed: blocks that could not be taken are held back until they can.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from octavo.memory import tightest

from octavo_gpuworker.backends.backend import Backend

SLICE_BYTES: Final = 4 * 2**20
"""Between two looks whether to go on."""
AGAIN_S: Final = 1.0
"""Until the next look whether there is memory again."""

log = logging.getLogger(__name__)


class PoolPages:
    """The thread that asks for it, slice by slice.

    `tell` is given the blocks, from the first on, that may be used while memory is short, and 0 once all may be. `spare`: bytes that
    may be taken.
    """

    def __init__(
        self, backend: Backend, tell: Callable[[int], None], spare: Callable[[], int] = lambda: tightest().spare_bytes
    ) -> None:
        self._backend = backend
        self._tell = tell
        self._spare = spare
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
        held_back = False
        while self.taken < pool.num_blocks and not self._stopping.is_set():
            count = min(step, pool.num_blocks - self.taken)
            if self._spare() < count * pool.block_bytes:
                if not self._backend.touch(0, 1):
                    return
                self._tell(max(1, self.taken))
                if not held_back:
                    log.warning(
                        "memory is short: %.0f of %.0f MiB of the KV pool are held back until there is more; lower "
                        "engine.kv_pool_bytes or cache.dram_bytes",
                        (pool.num_blocks - self.taken) * pool.block_bytes / 2**20,
                        pool.num_blocks * pool.block_bytes / 2**20,
                    )
                held_back = True
                self._stopping.wait(AGAIN_S)
                continue
            if not self._backend.touch(self.taken, count):
                return
            self.taken += count
        if held_back and self.taken == pool.num_blocks:
            self._tell(0)
            log.info("the whole KV pool has memory now")
