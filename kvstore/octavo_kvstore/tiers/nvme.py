"""The NVMe tier: one LMDB environment, one record per block (see `octavo_kvstore.record`).

Commits are not synced: the file is a cache whose every record carries checksums, `tiers.folder` tells how it was left,
and `tiers.probe` looks at it from a child before this process maps it. An in-memory index (rebuilt from the headers at
start) answers `contains` and keeps the order of eviction. Reads go in parallel; writes are one at a time, and the store
feeds them in batches from one thread. A medium that fails is wiped and reopened; if even that fails the tier is off:
misses and refusals, never an exception.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lmdb

from octavo_kvstore.policy import LeafFirstLru
from octavo_kvstore.record import HEADER_BYTES, decode_block, decode_header, encode_header
from octavo_kvstore.tier import Block, IsPinned, Put, Tier, TierStats, check_block, check_key
from octavo_kvstore.tiers.folder import TierFolder
from octavo_kvstore.tiers.probe import problem_in

PAGE_BYTES = 4096
_PAGE_HEADER_BYTES = 16
_WRITE_TRIES = 4  # pages freed by one commit can be used by the next but one
_READER_CHECK_COMMITS = 256
_BROKEN = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.PanicError, lmdb.InvalidError, lmdb.VersionMismatchError)

log = logging.getLogger("octavo.kvstore.nvme")


@dataclass(frozen=True, slots=True)
class _Entry:
    layout: bytes
    parent: bytes
    disk_bytes: int


def disk_bytes(payload_bytes: int) -> int:
    """What a block takes in the file: LMDB gives large values whole pages with one 16-byte header."""
    return -(-(_PAGE_HEADER_BYTES + HEADER_BYTES + payload_bytes) // PAGE_BYTES) * PAGE_BYTES


def budget_bytes(map_bytes: int) -> int:
    """How much of the map blocks may fill: pages freed by a commit are late, and the tree itself needs some."""
    return max(0, map_bytes * 15 // 16 - 3 * min(16 * 2**20, map_bytes // 16))


class NvmeTier(Tier):
    """Bounded by the map size: the file never outgrows `map_bytes`."""

    name = "nvme"

    def __init__(
        self,
        path: Path,
        map_bytes: int,
        is_pinned: IsPinned = lambda key: False,
        boot_id: str | None = None,
    ) -> None:
        """Opens or makes the folder `path`; blocks while a child probes it.

        Raises OctavoError when the folder cannot be used at all (taken by another process, not writable); damage is
        wiped and logged.
        """
        self._map_bytes = max(map_bytes // PAGE_BYTES, 64) * PAGE_BYTES
        self._budget_bytes = budget_bytes(self._map_bytes)
        self._allowed_bytes = self._budget_bytes  # shrinks when the disk is fuller than we were told
        self._is_pinned = is_pinned
        self._write_lock = threading.Lock()  # taken before _lock
        self._lock = threading.Lock()
        self._index: dict[bytes, _Entry] = {}
        self._order = LeafFirstLru()
        self._drops: set[bytes] = set()  # records no longer in the index, to be deleted with the next commit
        self._used_bytes = 0
        self._use_number = 0
        self._stuck = False
        self._commits = 0
        self._file_bytes = 0
        self._hits = self._misses = self._corrupt = self._evicted = self._refused = 0
        self.wipes = 0
        self.write_errors = 0
        self._env: lmdb.Environment | None = None
        self._closed = False
        self._folder = TierFolder(path, boot_id)
        try:
            self._open()
        except BaseException:
            self._folder.release()
            raise

    # opening

    def _open(self) -> None:
        past = self._folder.past()
        reason = ""
        if past == "foreign":
            reason = "it was not written by this version"
        elif past != "empty" and self._folder.data_path.stat().st_size > self._map_bytes:
            reason = "it is larger than cache.nvme_bytes, and the file of a tier cannot shrink"
        elif past != "empty":
            reason = problem_in(self._folder.path)
        if reason:
            self._wipe_files(reason)
        try:
            self._open_environment()
            self._read_index(check_values=past == "crashed")
        except (lmdb.Error, OSError) as error:
            self._reset(f"{type(error).__name__}: {error}")
        log.info("nvme tier open: left %s, %d blocks", past, len(self._index))

    def _open_environment(self) -> None:
        self._folder.mark(clean=False)
        # sync=False without writemap: a process death loses nothing, a machine death is found by the marker;
        # writemap would turn a full disk into SIGBUS
        self._env = lmdb.open(
            str(self._folder.path),
            map_size=self._map_bytes,
            sync=False,
            metasync=False,
            readahead=True,
            max_readers=254,
        )
        self._env.reader_check()
        self._note_file_size()

    def _read_index(self, *, check_values: bool) -> None:
        assert self._env is not None
        found: list[tuple[int, bytes, _Entry]] = []
        with self._env.begin(buffers=True) as transaction:
            for key_view, value in transaction.cursor():
                key = bytes(key_view)
                header = decode_header(key, bytes(value[:HEADER_BYTES]))
                whole = header is not None and len(value) == HEADER_BYTES + header.length
                if header is None or not whole or (check_values and decode_block(key, bytes(value)) is None):
                    self._corrupt += 1
                    self._drops.add(key)
                    continue
                entry = _Entry(header.layout, header.parent, disk_bytes(header.length))
                found.append((header.use_number, key, entry))
        for use_number, key, entry in sorted(found, key=lambda item: item[0]):
            self._use_number = max(self._use_number, use_number)
            self._enter(key, entry)

    # the contract

    def put_many(self, blocks: Sequence[Block]) -> tuple[list[Put], list[bytes]]:
        for block in blocks:
            check_block(block)
        with self._write_lock:
            outcomes, fresh = self._sort(blocks)
            evicted: list[bytes] = []
            if fresh and not self._write(fresh, evicted):
                # a batch that does not fit whole may still fit in part
                for index, block in fresh.items():
                    if len(fresh) == 1 or self._stuck or not self._write({index: block}, evicted):
                        outcomes[index] = Put.REFUSED
            with self._lock:
                self._refused += outcomes.count(Put.REFUSED)
                return outcomes, [key for key in dict.fromkeys(evicted) if key not in self._index]

    def get(self, key: bytes, layout: bytes) -> Block | None:
        check_key(key)
        with self._lock:
            entry = self._index.get(key)
            environment = self._env
            if entry is None or entry.layout != layout or environment is None:
                self._misses += 1
                return None
            self._order.touch(key)
        block = None
        try:
            if os.stat(self._folder.data_path).st_size < self._file_bytes:
                raise lmdb.CorruptedError("the data file was truncated")  # reading the map would raise SIGBUS
            with environment.begin() as transaction:
                record = transaction.get(key)
            block = None if record is None else decode_block(key, record)
        except (lmdb.Error, OSError) as error:
            with self._lock:
                self._misses += 1
            if isinstance(error, (*_BROKEN, OSError)) and not self._closed:
                self._fail(environment, f"{type(error).__name__}: {error}")
            return None
        with self._lock:
            if block is not None and block.layout == layout:
                self._hits += 1
                return block
            self._misses += 1
            if self._index.get(key) is entry:  # else it was deleted or rewritten meanwhile
                self._corrupt += 1
                self._leave(key)
                self._drops.add(key)
            return None

    def contains(self, key: bytes, layout: bytes | None = None) -> bool:
        check_key(key)
        entry = self._index.get(key)
        return entry is not None and layout in (None, entry.layout)

    def touch(self, key: bytes) -> None:
        with self._lock:
            self._order.touch(key)

    def delete(self, key: bytes) -> bool:
        check_key(key)
        with self._write_lock:
            with self._lock:
                if key not in self._index:
                    return False
                self._leave(key)
                self._drops.add(key)
            self._commit({})
            return True

    def keys(self) -> list[bytes]:
        with self._lock:
            return list(self._index)

    def stats(self) -> TierStats:
        with self._lock:
            return TierStats(
                name=self.name,
                capacity_bytes=self._budget_bytes,
                used_bytes=self._used_bytes,
                keys=len(self._index),
                hits=self._hits,
                misses=self._misses,
                corrupt=self._corrupt,
                evicted=self._evicted,
                refused=self._refused,
            )

    def close(self) -> None:
        with self._write_lock:
            if self._closed:
                return
            self._closed = True
            environment, self._env = self._env, None
            try:
                if environment is not None:
                    environment.sync(True)
                    environment.close()
                    self._folder.mark(clean=True)
            except (lmdb.Error, OSError) as error:
                log.warning("nvme tier: not closed in order, the next start will check it: %s", error)
            finally:
                self._folder.release()

    # writing; all of it under _write_lock

    def _sort(self, blocks: Sequence[Block]) -> tuple[list[Put], dict[int, Block]]:
        """The outcomes as far as they are known before writing, and what must be written, by its place in `blocks`."""
        outcomes: list[Put] = []
        fresh: dict[int, Block] = {}
        seen: set[bytes] = set()
        with self._lock:
            for index, block in enumerate(blocks):
                entry = self._index.get(block.key)
                if block.key in seen or (entry is not None and entry.layout == block.layout):
                    self._order.touch(block.key)
                    outcomes.append(Put.KNOWN)
                elif self._env is None or disk_bytes(len(block.payload)) > self._budget_bytes:
                    outcomes.append(Put.REFUSED)
                else:
                    if entry is not None:
                        self._leave(block.key)  # another layout: put overwrites the record
                    seen.add(block.key)
                    fresh[index] = block
                    outcomes.append(Put.STORED)
        return outcomes, fresh

    def _write(self, fresh: dict[int, Block], evicted: list[bytes]) -> bool:
        """Evicts as needed and commits; False when the blocks are not in the tier afterwards."""
        need = sum(disk_bytes(len(block.payload)) for block in fresh.values())
        self._stuck = False
        for _ in range(_WRITE_TRIES):
            if self._env is None or not self._make_room(need, evicted):
                return False
            error = self._commit(fresh)
            if error is None:
                with self._lock:
                    self._allowed_bytes = min(self._budget_bytes, self._allowed_bytes + need // 8)
                return True
            if isinstance(error, _BROKEN):
                self._reset(f"{type(error).__name__}: {error}")
                return False
            with self._lock:
                # map full or disk full: live within what is used now, so that the next try evicts
                self._allowed_bytes = max(self._used_bytes, need)
            if self._commit({}) is not None:
                self._stuck = True  # not even deletes go through: evicting more would only lose what can still be read
                return False
        return False

    def _make_room(self, need: int, evicted: list[bytes]) -> bool:
        with self._lock:
            while self._used_bytes + need > self._allowed_bytes:
                victim = self._order.pop_victim(self._is_pinned)
                if victim is None:
                    # a single block may use what the disk still gives up to the budget
                    return self._used_bytes + need <= self._budget_bytes
                self._leave(victim)
                self._drops.add(victim)
                self._evicted += 1
                evicted.append(victim)
            return True

    def _commit(self, fresh: dict[int, Block]) -> lmdb.Error | None:
        """One transaction: drops out, blocks in. The index follows only a commit that went through."""
        environment = self._env
        if environment is None:
            return lmdb.Error("the tier is off")
        with self._lock:
            drops = [key for key in self._drops if key not in self._index]
        numbers = range(self._use_number + 1, self._use_number + 1 + len(fresh))
        try:
            with environment.begin(write=True) as transaction:
                for key in drops:
                    transaction.delete(key)
                for number, block in zip(numbers, fresh.values(), strict=True):
                    transaction.put(block.key, encode_header(block, number) + block.payload)
        except lmdb.Error as error:
            self.write_errors += 1
            log.warning("nvme tier: a commit failed: %s", error)
            return error
        self._use_number += len(fresh)
        self._note_file_size()
        with self._lock:
            self._drops.difference_update(drops)
            for block in fresh.values():
                self._drops.discard(block.key)
                self._enter(block.key, _Entry(block.layout, block.parent, disk_bytes(len(block.payload))))
        self._commits += 1
        if self._commits % _READER_CHECK_COMMITS == 0:
            environment.reader_check()
        return None

    # failure

    def _fail(self, environment: lmdb.Environment, reason: str) -> None:
        """A reader found the medium broken; the first to say so has it replaced."""
        with self._write_lock:
            if self._env is environment and not self._closed:
                self._reset(reason)

    def _reset(self, reason: str) -> None:
        """Starts over with an empty file, or goes off; under _write_lock or before any sharing."""
        with self._lock:
            lost = list(self._index)
            environment, self._env = self._env, None
            self._index.clear()
            self._order = LeafFirstLru()
            self._drops.clear()
            self._used_bytes = 0
            self._allowed_bytes = self._budget_bytes
        try:
            if environment is not None:
                environment.close()
            self._wipe_files(reason)
            self._open_environment()
        except (lmdb.Error, OSError) as error:
            log.error("nvme tier is off until the next start: %s", error)
        if lost:
            self.on_lost(lost)

    def _wipe_files(self, reason: str) -> None:
        log.warning("nvme tier: wiped, %s", reason)
        self.wipes += 1
        self._file_bytes = 0
        self._folder.wipe()

    def _note_file_size(self) -> None:
        self._file_bytes = max(self._file_bytes, os.stat(self._folder.data_path).st_size)

    # the index; under _lock

    def _enter(self, key: bytes, entry: _Entry) -> None:
        self._index[key] = entry
        self._order.add(key, entry.parent)
        self._used_bytes += entry.disk_bytes

    def _leave(self, key: bytes) -> None:
        entry = self._index.pop(key)
        self._order.remove(key)
        self._used_bytes -= entry.disk_bytes
