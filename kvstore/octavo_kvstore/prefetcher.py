"""Carries out the scheduler's hints: what a waiting request will load moves into DRAM, one hint at a time, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence

from octavo_kvstore.store import Store

MAX_HINTS = 16
"""Older ones fall out: by now their request runs, or has given up."""

log = logging.getLogger("octavo.kvstore.prefetch")


class Prefetcher:
    """Thread-safe. A hint is never owed: whatever goes wrong costs a load from the tier below."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._hints: deque[Sequence[bytes]] = deque(maxlen=MAX_HINTS)
        self._closed = False
        self._busy = False
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()

    def hint(self, keys: Sequence[bytes]) -> None:
        """Queues the blocks of a chain. Never blocks."""
        with self._changed:
            self._hints.append(keys)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Waits until every hint is carried out; for tests."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._hints and not self._busy, timeout_s)

    def close(self) -> None:
        """Drops the hints and ends the thread. Idempotent; blocks while a hint is carried out."""
        with self._changed:
            self._closed = True
            self._hints.clear()
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._hints or self._closed)
                if self._closed:
                    return
                keys = self._hints.popleft()
                self._busy = True
            try:
                self._store.prefetch(keys)
            except Exception:  # the hint is lost, never the thread
                log.exception("a hint of %d blocks could not be carried out", len(keys))
            with self._changed:
                self._busy = False
                self._changed.notify_all()
