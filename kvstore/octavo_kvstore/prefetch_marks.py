"""What became of the blocks that hints lifted: asked for by a load, or evicted before anybody did. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Iterable

MAX_MARKS = 65_536


class PrefetchMarks:
    """Keys that were lifted and not asked for yet, the oldest first; what falls out of a full list counts as wasted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lifted: dict[bytes, None] = {}
        self.used = self.wasted = 0

    def lifted(self, key: bytes) -> None:
        """A hint brought this block up."""
        with self._lock:
            self._lifted[key] = None
            if len(self._lifted) > MAX_MARKS:
                del self._lifted[next(iter(self._lifted))]
                self.wasted += 1

    def asked(self, keys: Iterable[bytes]) -> None:
        """A load asks for these."""
        if self._lifted:
            self.used += self._take(keys)

    def gone(self, keys: Iterable[bytes]) -> None:
        """These have left DRAM."""
        if self._lifted:
            self.wasted += self._take(keys)

    def _take(self, keys: Iterable[bytes]) -> int:
        taken = 0
        with self._lock:
            for key in keys:
                if key in self._lifted:
                    del self._lifted[key]
                    taken += 1
        return taken
