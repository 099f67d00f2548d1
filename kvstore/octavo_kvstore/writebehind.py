"""The one thread that writes to the NVMe tier: a queue bounded in bytes, committed in batches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from octavo_kvstore.block import Block
from octavo_kvstore.tier import Tier

BATCH_BLOCKS = 32
BATCH_BYTES = 16 * 2**20

log = logging.getLogger("octavo.kvstore.writebehind")


class WriteBehind:
    """Blocks wait here until they are in the tier below; while they wait they can be read.

    `on_written(keys)` is called from the thread after each commit, with every key whose holding may have changed.
    """

    def __init__(self, tier: Tier, capacity_bytes: int, on_written: Callable[[list[bytes]], None]) -> None:
        self._tier = tier
        self._capacity_bytes = capacity_bytes
        self._on_written = on_written
        self._changed = threading.Condition()
        self._waiting: dict[bytes, Block] = {}  # in order of arrival
        self._waiting_bytes = 0
        self._writing: dict[bytes, Block] = {}
        self._closing = False
        self.written = 0
        self.dropped = 0
        self.refused = 0
        self._thread = threading.Thread(target=self._run, name="nvme-writer", daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """Payload bytes that are not in the tier below yet."""
        return self._waiting_bytes

    def offer(self, block: Block) -> bool:
        """Queues a block; False when the queue is full: the block then lives in the tier above alone. Never blocks."""
        with self._changed:
            known = self._waiting.get(block.key) or self._writing.get(block.key)
            if known is not None:
                return known.layout == block.layout
            if self._closing or self._waiting_bytes + len(block.payload) > self._capacity_bytes:
                self.dropped += 1
                return False
            self._waiting[block.key] = block
            self._waiting_bytes += len(block.payload)
            self._changed.notify_all()
            return True

    def get(self, key: bytes) -> Block | None:
        """A block on its way down."""
        with self._changed:
            return self._waiting.get(key) or self._writing.get(key)

    def contains(self, key: bytes) -> bool:
        """Whether a block is on its way down."""
        return key in self._waiting or key in self._writing

    def of_namespace(self, namespace: bytes) -> list[bytes]:
        """Keys of a namespace on their way down."""
        with self._changed:
            blocks = [*self._waiting.values(), *self._writing.values()]
        return [block.key for block in blocks if block.meta.namespace == namespace]

    def discard(self, key: bytes) -> bool:
        """Takes a key back, waiting for the commit that may just be writing it; True when it had been here."""
        with self._changed:
            block = self._waiting.pop(key, None)
            if block is not None:
                self._waiting_bytes -= len(block.payload)
                return True
            was_writing = key in self._writing
            while key in self._writing:
                self._changed.wait()
            return was_writing

    def flush(self, timeout_s: float) -> bool:
        """Waits until all that was queued has been written or refused; False when the time was too short."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._waiting and not self._writing, timeout=max(0.0, deadline - time.monotonic())
            )

    def close(self, timeout_s: float) -> None:
        """Flushes within the time, drops the rest, ends the thread. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self.flush(timeout_s)
        with self._changed:
            self.dropped += len(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
            self._changed.notify_all()
        self._thread.join(timeout=max(timeout_s, 1.0))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                self._take_batch()
                batch = list(self._writing.values())
            keys = [block.key for block in batch]
            try:
                outcomes, evicted = self._tier.put_many(batch)
                keys += evicted
                refused = sum(outcome.value == "refused" for outcome in outcomes)
                self.refused += refused
                self.written += len(batch) - refused
            except Exception:  # the batch is lost from the tier below, never the thread
                log.exception("a batch of %d blocks could not be written", len(batch))
                self.refused += len(batch)
            with self._changed:
                self._writing.clear()
                self._changed.notify_all()
            self._on_written(keys)

    def _take_batch(self) -> None:
        size = 0
        while self._waiting and len(self._writing) < BATCH_BLOCKS:
            key = next(iter(self._waiting))
            block = self._waiting[key]
            if self._writing and size + len(block.payload) > BATCH_BYTES:
                break
            self._writing[key] = block  # first, so that `contains` never sees a gap
            del self._waiting[key]
            self._waiting_bytes -= len(block.payload)
            size += len(block.payload)
