"""The kvstore's shared memory as a worker maps it: attach once, then copy blocks between pool and slots with nothing in between.

The worker's lock file is its life to the store: whatever the store lent it comes back when the kernel drops that lock. Where there
is no arena (another host, no shared volume, other block size) `attach` says no, and payload travels in messages.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import xxhash
from numpy.typing import NDArray
from octavo.arena import ArenaMap, make_locked
from octavo.v1 import kvstore_pb2 as pb

from octavo_gpuworker.backends.blocks import BlockPool
from octavo_gpuworker.checked_copy import SHORT_BYTES, Rows, checked_copy, plain_copy, row_copy

ATTACH_LIMIT_S = 2.0
KEPT_BYTES = 64 * 2**20
"""Of slots copied last that stay mapped: faulting their pages in again takes several times as long as copying them."""
RETRY_S = 10.0
"""A store that said no is asked again after this long."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CopiedOut:
    """How many of the slots were copied whole, leading run, and the payload of each where the pool lies on a device."""

    whole: int
    payloads: list[bytes]


class ArenaLink:
    """One worker's end. `attach` runs on the loop; the copies may run in any thread."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._on_device = pool.host_array(0) is None
        self._copy = plain_copy if self._on_device else checked_copy()
        self._copy_rows = None if self._on_device else row_copy()
        self._blocks = None if self._on_device else Rows.of(self._host_block, pool.num_blocks)
        self._slots: Rows | None = None
        self._map: ArenaMap | None = None
        self._lock_fd = -1
        self._lock_path: Path | None = None
        self._ask_again_s = 0.0
        self.client = 0
        """The number that the store knows this worker by; 0: not attached."""

    async def attach(self, store: Any) -> bool:
        """Whether there is an arena to copy with; asks the store unless it said no a moment ago."""
        if self.client:
            return True
        if time.monotonic() < self._ask_again_s:
            return False
        self._ask_again_s = time.monotonic() + RETRY_S
        folder = ""
        try:
            folder = (await store.AttachArena(pb.AttachArenaRequest(), timeout=ATTACH_LIMIT_S)).folder
            if not folder:
                return False
            lock_name = self._hold_lock(Path(folder))
            request = pb.AttachArenaRequest(block_bytes=self._pool.block_bytes, lock_name=lock_name)
            answer = await store.AttachArena(request, timeout=ATTACH_LIMIT_S)
            if not answer.path:
                return False
            arena = self._map = ArenaMap(Path(answer.path), answer.slots, answer.slot_bytes, KEPT_BYTES)
            self._slots = Rows.of(lambda number: np.frombuffer(arena.slot(number), np.uint8), answer.slots)
        except grpc.aio.AioRpcError as error:
            log.debug("the kvstore gives no arena: %r", error)
            return False
        except (OSError, ValueError) as error:
            log.warning("the kvstore's arena in %s cannot be used, blocks travel in messages: %s", folder, error)
            return False
        self.client = answer.client
        log.info("kvstore arena: %d slots of %d bytes", answer.slots, answer.slot_bytes)
        return True

    def forget(self) -> None:
        """The store knows this worker no more (it was restarted): the next `attach` asks at once."""
        self.client = 0
        self._map = self._slots = None
        self._ask_again_s = 0.0

    def close(self) -> None:
        """Ends the life of the lock file: whatever was lent goes back."""
        self.forget()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
        if self._lock_path is not None:
            with contextlib.suppress(OSError):
                self._lock_path.unlink()

    def _hold_lock(self, folder: Path) -> str:
        if self._lock_path is None or self._lock_path.parent != folder or not self._lock_path.exists():
            path = folder / f"octavo-lease-{uuid.uuid4().hex}"
            fd = make_locked(path)
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
            self._lock_fd, self._lock_path = fd, path
        return self._lock_path.name

    # copies

    def copy_out(self, refs: Sequence[Any], blocks: Sequence[int]) -> CopiedOut:
        """Slots into blocks of the pool, up to the first whose generation or checksum is not what was promised."""
        arena, rows, size = self._map, self._slots, self._pool.block_bytes  # read once: `forget` may come meanwhile
        if arena is None or any(ref.length != size or ref.length > arena.slot_bytes for ref in refs):
            log.warning("an arena slot was not what the kvstore said: its length differs")
            return CopiedOut(0, [])
        numbers = [ref.slot for ref in refs]
        payloads: list[bytes] = []
        if self._on_device:
            payloads = [bytes(arena.slot(number)[:size]) for number in numbers]
            sums = [xxhash.xxh3_64_intdigest(payload) for payload in payloads]
        elif self._copy_rows and self._blocks and rows and size > SHORT_BYTES:
            sums = self._copy_rows(self._blocks, blocks, rows, numbers, size)
        else:
            slots = [np.frombuffer(arena.slot(number), np.uint8, size) for number in numbers]
            sums = self._copy([self._host_block(block) for block in blocks], slots)
        whole = 0
        # after the copies: a slot that was filled anew meanwhile has another generation
        while whole < len(refs) and _is_right(arena, refs[whole], sums[whole]):
            whole += 1
        for ref in refs:
            arena.let_go(ref.slot)
        if whole < len(refs):
            log.warning("an arena slot was not what the kvstore said: generation or checksum differ")
        return CopiedOut(whole, payloads[:whole])

    def copy_in(self, blocks: Sequence[int], refs: Sequence[Any]) -> list[int]:
        """Blocks of the pool into reserved slots; the xxh3-64 of each, over the slot's bytes."""
        arena = self._map
        if arena is None:
            raise ConnectionError("the arena is gone")
        slots = [np.frombuffer(arena.slot(ref.slot), np.uint8, ref.length) for ref in refs]
        sums = self._copy(slots, [self._bytes_of(block) for block in blocks])
        for ref in refs:
            arena.let_go(ref.slot)  # or this worker's memory would grow to the store's
        return sums

    def _host_block(self, block: int) -> NDArray[np.uint8]:
        array = self._pool.host_array(block)
        assert array is not None
        return array

    def _bytes_of(self, block: int) -> NDArray[np.uint8]:
        room = self._pool.host_array(block)
        return np.frombuffer(self._pool.read_block(block), np.uint8) if room is None else room


def _is_right(arena: ArenaMap, ref: Any, checksum: int) -> bool:
    return bool(arena.generation(ref.slot) == ref.generation and checksum == ref.checksum)
