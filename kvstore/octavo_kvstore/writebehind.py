"""The one thread that writes to the NVMe tier: a queue bounded in bytes, committed in batches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from octavo_kvstore.block import Block
from octavo_kvstore.tier import Tier

BATCH_BLOCKS = 32
BATCH_BYTES = 16 * 2**20
LINGER_S = 0.1
"""How long the first block of a batch waits for others: streams end their blocks one by one, and a commit of one costs as much as of many."""
Release = Callable[[], None]

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
        self._releases: dict[bytes, Release] = {}  # of those whose payload is somebody's until it is written
        self._closing = False
        self._hurried = 0
        self.written = 0
        self.dropped = 0
        self.refused = 0
        self._thread = threading.Thread(target=self._run, name="nvme-writer", daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """Payload bytes that are not in the tier below yet."""
        return self._waiting_bytes

    def offer(self, block: Block, release: Release | None = None) -> bool:
        """Queues a block; False when the queue is full: the block then lives in the tier above alone. Never blocks.

        `release` is called, from any thread, once the payload is needed no more, at once when the block is not queued.
        """
        taken, kept = self._offer(block, release)
        if release is not None and not kept:
            release()
        return taken

    def _offer(self, block: Block, release: Release | None) -> tuple[bool, bool]:
        """Whether the block is on its way down, and whether with this payload."""
        with self._changed:
            known = self._waiting.get(block.key) or self._writing.get(block.key)
            if known is not None:
                return known.layout == block.layout, False
            if self._closing or self._waiting_bytes + len(block.payload) > self._capacity_bytes:
                self.dropped += 1
                return False, False
            if release is not None:
                self._releases[block.key] = release
            self._waiting[block.key] = block
            self._waiting_bytes += len(block.payload)
            if len(self._waiting) == 1 or self._is_full():
                self._changed.notify_all()
            return True, True

    def _is_full(self) -> bool:
        return len(self._waiting) >= BATCH_BLOCKS or self._waiting_bytes >= min(BATCH_BYTES, self._capacity_bytes // 2)

    def _due(self, keys: Iterable[bytes]) -> list[Release]:
        """Whom to tell that the payloads of these are needed no more; under the lock, else one offered anew might be among them."""
        return [self._releases.pop(key) for key in keys if key in self._releases]

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
            was_writing = block is None and key in self._writing
            while block is None and key in self._writing:
                self._changed.wait()
            self._waiting_bytes -= len(block.payload) if block is not None else 0
            due = self._due([key]) if block is not None else []
            self._changed.notify_all()  # a flush may have waited for just this one
        for release in due:
            release()
        return block is not None or was_writing

    def flush(self, timeout_s: float) -> bool:
        """Waits until all that was queued has been written or refused; False when the time was too short."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._hurried += 1
            self._changed.notify_all()
            done = self._changed.wait_for(
                lambda: not self._waiting and not self._writing, timeout=max(0.0, deadline - time.monotonic())
            )
            self._hurried -= 1
        return done

    def close(self, timeout_s: float) -> None:
        """Flushes within the time, drops the rest, ends the thread. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self.flush(timeout_s)
        with self._changed:
            self.dropped += len(self._waiting)
            due = self._due(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
            self._changed.notify_all()
        for release in due:
            release()
        self._thread.join(timeout=max(timeout_s, 1.0))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                self._changed.wait_for(lambda: self._is_full() or self._closing or self._hurried, timeout=LINGER_S)
                self._take_batch()
                batch = list(self._writing.values())
            if not batch:
                continue  # all that waited was taken back
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
                due = self._due(block.key for block in batch)
            for release in due:  # first: after a flush nothing is kept any more
                release()
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
