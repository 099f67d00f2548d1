"""What the NVMe backends share: the folder and its past, the probe, the write loop, failure.

Commits are not synced: the files are a cache whose every record carries checksums, `tiers.folder` tells how they were left, and
`tiers.probe` looks at LMDB's file from a child before this process maps it. The index in memory (rebuilt from the records at start)
answers `contains` and keeps the order of eviction. Reads go in parallel; writes are one at a time, and the store feeds them in
batches from one thread. A medium that fails is wiped and reopened; if even that fails the tier is off: misses and refusals,
never an exception.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import lmdb

from octavo_kvstore.block import Block, Payload, check_block, check_key
from octavo_kvstore.index import Clock, Entry, IsPinned, Place, TierIndex
from octavo_kvstore.limits import TierLimits
from octavo_kvstore.record import HEADER_BYTES, Header, decode_header
from octavo_kvstore.tier import IndexedTier, Lane, Put
from octavo_kvstore.tiers.folder import TierFolder
from octavo_kvstore.tiers.probe import problem_in

PAGE_BYTES = 4096
_WRITE_TRIES = 4  # pages freed by one commit can be used by the next but one
_READER_CHECK_COMMITS = 256
BROKEN = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.PanicError, lmdb.InvalidError, lmdb.VersionMismatchError)
"""LMDB says that its file is damaged, not full."""

log = logging.getLogger("octavo.kvstore.nvme")


class NvmeTier(IndexedTier[Place]):
    """Bounded by its capacity on disk. A backend adds where payloads lie."""

    name = "nvme"
    backend: str
    """Its name in cache.nvme_backend, and in the folder's marker."""

    def __init__(
        self,
        path: Path,
        capacity_bytes: int,
        map_bytes: int,
        is_pinned: IsPinned,
        boot_id: str | None,
        limits: TierLimits,
        clock_s: Clock,
    ) -> None:
        """Opens or makes the folder `path`; blocks while a child probes it.

        Raises OctavoError when the folder cannot be used at all (taken by another process, not writable); damage is
        wiped and logged.
        """
        super().__init__(TierIndex(capacity_bytes, is_pinned, limits, clock_s))
        self._map_bytes = max(map_bytes // PAGE_BYTES, 64) * PAGE_BYTES
        self._write_lock = threading.Lock()  # taken before _lock
        self._idle = threading.Condition(self._lock)
        self._readers = 0
        self._drops: dict[bytes, Entry[Place]] = {}  # no longer in the index, to be deleted with the next commit
        self._use_number = 0
        self._stuck = False
        self._file_bytes = 0
        self.commits = 0
        self.wipes = 0
        self.write_errors = 0
        self.written_bytes = 0
        """Payload bytes given to the medium, for write amplification."""
        self._env: lmdb.Environment | None = None
        self._closed = False
        self._folder = TierFolder(path, self.backend, boot_id)
        try:
            self._open()
        except BaseException:
            self._folder.release()
            raise

    # what a backend adds

    @abc.abstractmethod
    def _size_on_disk(self, payload_bytes: int) -> int:
        """What a payload takes of the capacity."""

    @abc.abstractmethod
    def _load_record(self, key: bytes, value: memoryview, header: Header) -> tuple[Place, int] | None:
        """Place and size of a record found at start; None when it is not whole."""

    @abc.abstractmethod
    def _read_payload(
        self, key: bytes, entry: Entry[Place], room: memoryview | None, lane: Lane | None
    ) -> Payload | None:
        """The checked payload, in `room` where the backend can; None when it is damaged, gone or overwritten."""

    @abc.abstractmethod
    def _write_records(self, drops: dict[bytes, Entry[Place]], fresh: Sequence[tuple[int, Block]]) -> list[Place]:
        """Deletes and writes, durable against the death of this process when it returns; the place of each fresh block.

        Calls `_settle(drops)` once the deletions are committed. Raises lmdb.Error or OSError.
        """

    def _opened(self) -> None:
        """The environment is open and the index is not read yet."""

    def _index_read(self) -> None:
        """The index is complete."""

    def _closing(self) -> None:
        """No reader and no writer is left; the environment closes next."""

    # opening

    def _open(self) -> None:
        past = self._folder.past()
        if past in ("killed", "crashed") and self._folder.died_writing(self._folder.path):
            log.info("nvme tier: the last owner died inside a commit")
        reason = ""
        if past == "foreign":
            reason = "it was not written by this version and backend"
        elif past != "empty" and self._folder.data_path.stat().st_size > self._map_bytes:
            reason = "its LMDB file is larger than cache.nvme_bytes allows, and such a file cannot shrink"
        elif past != "empty":
            reason = problem_in(self._folder.path)
        if reason:
            self._wipe_files(reason)
        try:
            self._open_environment()
            self._read_index(check_values=past == "crashed")
        except (lmdb.Error, OSError) as error:
            self._reset(f"{type(error).__name__}: {error}")
        log.info("nvme tier (%s) open: left %s, %d blocks", self.backend, past, len(self._index))

    def _open_environment(self) -> None:
        self._folder.mark(clean=False)
        # sync=False without writemap: a process death loses nothing, a machine death is found by the marker;
        # writemap would turn a full disk into SIGBUS
        self._env = lmdb.open(
            str(self._folder.path),
            map_size=self._map_bytes,
            sync=False,
            metasync=False,
            writemap=False,
            readahead=True,
            max_readers=254,
        )
        self._env.reader_check()
        self._note_file_size()
        self._opened()

    def _read_index(self, *, check_values: bool) -> None:
        assert self._env is not None
        found: list[tuple[int, bytes, Entry[Place]]] = []
        damaged: list[bytes] = []
        with self._env.begin(buffers=True) as transaction:
            for key_view, value in transaction.cursor():
                key = bytes(key_view)
                header = decode_header(key, bytes(value[:HEADER_BYTES]))
                loaded = None if header is None else self._load_record(key, value, header)
                if header is None or loaded is None:
                    damaged.append(key)
                    continue
                place, size = loaded
                entry = Entry(header.parent, header.layout, header.checksum, header.length, size, header.meta, place)
                if check_values and self._read_payload(key, entry, None, None) is None:
                    damaged.append(key)
                    continue
                found.append((header.use_number, key, entry))
        self._index.corrupt += len(damaged)
        for use_number, key, entry in sorted(found, key=lambda item: item[0]):
            self._use_number = max(self._use_number, use_number)
            self._index.enter(key, entry)
        self._index_read()
        self._delete_records(damaged)
        surplus: list[tuple[bytes, Entry[Place]]] = []
        self._index.make_room({}, surplus)  # the capacity may be smaller than it was
        self._drops.update(surplus)

    def _delete_records(self, keys: list[bytes]) -> None:
        if keys and self._env is not None:
            with self._env.begin(write=True) as transaction:
                for key in keys:
                    transaction.delete(key)

    # the contract

    def put_many(self, blocks: Sequence[Block]) -> tuple[list[Put], list[bytes]]:
        for block in blocks:
            check_block(block)
        with self._write_lock:
            outcomes, fresh = self._sort(blocks)
            evicted: list[tuple[bytes, Entry[Place]]] = []
            if fresh and not self._write(fresh, evicted):
                # a batch that does not fit whole may still fit in part
                for index, block in fresh.items():
                    if len(fresh) == 1 or self._stuck or not self._write({index: block}, evicted):
                        outcomes[index] = Put.REFUSED
            with self._lock:
                self._index.refused += outcomes.count(Put.REFUSED)
                return outcomes, [key for key in dict.fromkeys(key for key, _ in evicted) if key not in self._index]

    def get(self, key: bytes, layout: bytes) -> Block | None:
        return self._get(key, layout, None, None)

    def read_into(self, key: bytes, layout: bytes, room: memoryview, lane: Lane | None = None) -> Block | None:
        return self._get(key, layout, room, lane)

    def _get(self, key: bytes, layout: bytes, room: memoryview | None, lane: Lane | None) -> Block | None:
        check_key(key)
        with self._lock:
            entry = self._index.find(key, layout)
            environment = self._env
            if entry is None or environment is None:
                self._index.misses += 1
                return None
            self._index.touch(key)
            self._readers += 1
        payload: Payload | None = None
        failure = ""
        try:
            payload = self._read_payload(key, entry, room, lane)
        except (*BROKEN, OSError) as error:
            failure = f"{type(error).__name__}: {error}"
        except lmdb.Error as error:
            log.warning("nvme tier: a read failed: %s", error)
        finally:
            with self._lock:
                self._readers -= 1
                self._idle.notify_all()
        if failure:
            self._fail(environment, failure)
        with self._lock:
            if payload is not None:
                self._index.hits += 1
                return Block(key, entry.parent, entry.layout, entry.checksum, payload, entry.meta)
            self._index.misses += 1
            if self._index.raw(key) is entry:  # else it was deleted or rewritten meanwhile
                self._index.corrupt += 1
                self._drops[key] = self._index.leave(key)
            return None

    def delete(self, key: bytes) -> bool:
        check_key(key)
        with self._write_lock:
            with self._lock:
                if key not in self._index:
                    return False
                self._drops[key] = self._index.leave(key)
            self._commit({})
            return True

    def close(self) -> None:
        with self._write_lock:
            if self._closed:
                return
            self._closed = True
            with self._quiet() as environment:
                try:
                    if environment is not None:
                        self._closing()
                        environment.sync(True)
                        environment.close()
                        self._folder.mark(clean=True)
                except (lmdb.Error, OSError) as error:
                    log.warning("nvme tier: not closed in order, the next start will check it: %s", error)
                finally:
                    self._folder.release()

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[lmdb.Environment | None]:
        """Takes the environment away and waits for the reads that have it."""
        with self._lock:
            environment, self._env = self._env, None
            self._idle.wait_for(lambda: not self._readers)
        yield environment

    # writing; all of it under _write_lock

    def _sort(self, blocks: Sequence[Block]) -> tuple[list[Put], dict[int, Block]]:
        """The outcomes as far as they are known before writing, and what must be written, by its place in `blocks`."""
        outcomes: list[Put] = []
        fresh: dict[int, Block] = {}
        seen: set[bytes] = set()
        with self._lock:
            for index, block in enumerate(blocks):
                if block.key in seen or self._index.known(block):
                    outcomes.append(Put.KNOWN)
                    continue
                if block.key in self._index:  # under another layout, or its time is over
                    self._drops[block.key] = self._index.leave(block.key)
                if self._env is None or self._size_on_disk(len(block.payload)) > self._index.capacity_bytes:
                    outcomes.append(Put.REFUSED)
                else:
                    seen.add(block.key)
                    fresh[index] = block
                    outcomes.append(Put.STORED)
        return outcomes, fresh

    def _write(self, fresh: dict[int, Block], evicted: list[tuple[bytes, Entry[Place]]]) -> bool:
        """Evicts as needed and commits; False when the blocks are not in the tier afterwards."""
        needs: dict[bytes, int] = {}
        for block in fresh.values():
            size = self._size_on_disk(len(block.payload))
            needs[block.meta.namespace] = needs.get(block.meta.namespace, 0) + size
        need = sum(needs.values())
        self._stuck = False
        for _ in range(_WRITE_TRIES):
            if self._env is None or not self._make_room(needs, evicted):
                return False
            error = self._commit(fresh)
            index = self._index
            if error is None:
                with self._lock:
                    index.allowed_bytes = min(index.capacity_bytes, index.allowed_bytes + need // 8)
                return True
            if isinstance(error, (*BROKEN, FileNotFoundError)):
                self._reset(f"{type(error).__name__}: {error}")
                return False
            with self._lock:
                # map full or disk full: live within what is used now, so that the next try evicts
                index.allowed_bytes = max(index.used_bytes, need)
            if self._commit({}) is not None:
                self._stuck = True  # not even deletes go through: evicting more would only lose what can still be read
                return False
        return False

    def _make_room(self, needs: dict[bytes, int], evicted: list[tuple[bytes, Entry[Place]]]) -> bool:
        before = len(evicted)
        with self._lock:
            fits = self._index.make_room(needs, evicted)
            self._drops.update(evicted[before:])
            return fits

    def _commit(self, fresh: dict[int, Block]) -> lmdb.Error | OSError | None:
        """Drops out, blocks in. The index follows only a commit that went through."""
        if self._env is None:
            return lmdb.Error("the tier is off")
        with self._lock:
            drops = {key: entry for key, entry in self._drops.items() if key not in self._index}
        if not drops and not fresh:
            return None
        blocks = list(enumerate(fresh.values(), self._use_number + 1))
        try:
            self._check_file()
            with self._folder.writing():
                places = self._write_records(drops, blocks)
        except (lmdb.Error, OSError) as error:
            self.write_errors += 1
            log.warning("nvme tier: a commit failed: %s", error)
            return error
        self._use_number += len(blocks)
        self._note_file_size()
        with self._lock:
            for (_, block), place in zip(blocks, places, strict=True):
                length = len(block.payload)
                self.written_bytes += length
                size = self._size_on_disk(length)
                entry = Entry(block.parent, block.layout, block.checksum, length, size, block.meta, place)
                self._index.enter(block.key, entry)
        self.commits += 1
        if self.commits % _READER_CHECK_COMMITS == 0:
            self._env.reader_check()
        return None

    def _settle(self, drops: dict[bytes, Entry[Place]]) -> None:
        """These records are deleted."""
        with self._lock:
            for key, entry in drops.items():
                if self._drops.get(key) is entry:
                    del self._drops[key]

    # failure

    def _fail(self, environment: lmdb.Environment, reason: str) -> None:
        """A reader found the medium broken; the first to say so has it replaced."""
        with self._write_lock:
            if self._env is environment and not self._closed:
                self._reset(reason)

    def _reset(self, reason: str) -> None:
        """Starts over with an empty file, or goes off; under _write_lock or before any sharing."""
        with self._quiet() as environment:
            with self._lock:
                lost = self._index.clear()
                self._drops.clear()
                self._index.allowed_bytes = self._index.capacity_bytes
            try:
                if environment is not None:
                    self._closing()
                    environment.close()
                self._wipe_files(reason)
                self._open_environment()
                self._index_read()
            except (lmdb.Error, OSError) as error:
                log.error("nvme tier is off until the next start: %s", error)
        if lost:
            self.on_lost(lost)

    def _wipe_files(self, reason: str) -> None:
        log.warning("nvme tier: wiped, %s", reason)
        self.wipes += 1
        self._file_bytes = 0
        self._folder.wipe()

    def _check_file(self) -> None:
        """Raises CorruptedError when somebody cut the file that is mapped: touching what is gone would raise SIGBUS."""
        least = self._file_bytes  # first: the writer may make the file grow between the two
        if os.stat(self._folder.data_path).st_size < least:
            raise lmdb.CorruptedError("the data file was truncated")

    def _note_file_size(self) -> None:
        self._file_bytes = max(self._file_bytes, os.stat(self._folder.data_path).st_size)
