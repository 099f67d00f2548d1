"""The shared tier: records in a Valkey or Redis server that all hosts of a deployment can reach (extra `valkey`).

A value is the record of `record.py`, so checksums, layouts and life times are those of the NVMe tier. The index in
memory says what is believed to be there; a thread compares it with the server now and then, since other hosts put and
delete too. A server that is dead, slow or full costs misses and refusals: every call has a time limit, and after a
failure the server is left alone for a while.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import valkey
from octavo.errors import OctavoError
from octavo.manifest import ManifestError
from valkey.exceptions import ResponseError, ValkeyError

from octavo_kvstore.block import Block, check_block, check_key
from octavo_kvstore.encryption import SALT_BYTES, Keyring
from octavo_kvstore.index import Clock, Entry, IsPinned, TierIndex
from octavo_kvstore.limits import NO_LIMITS, TierLimits
from octavo_kvstore.record import HEADER_BYTES, decode_block, decode_header, encode_header
from octavo_kvstore.tier import IndexedTier, Put

PREFIX = b"octavo:kv:"
SALT_PREFIX = b"octavo:salt:"
REFRESH_S = 10.0
FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
FULL_PAUSE_S = 1.0
BATCH_BYTES = 2 * 2**20
SCAN_COUNT = 1000
MAX_CONNECTIONS = 8
OVERHEAD_BYTES = 128
"""What the server keeps beside a value: key, dict entry, allocator."""
SALT_CACHE_S = 5.0

log = logging.getLogger("octavo.kvstore.valkey")


def connect(url: str, timeout_s: float) -> valkey.Valkey:
    """A client whose calls end within the limit; nothing is dialled yet. Raises OctavoError for a URL that is none."""
    try:
        pool = valkey.BlockingConnectionPool.from_url(  # type: ignore[no-untyped-call]
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry_on_timeout=False,
        )
    except ValueError as error:
        raise ManifestError(
            f"cache.valkey_url: {error}; give valkey://HOST:PORT/DB", field="cache.valkey_url"
        ) from error
    return valkey.Valkey(connection_pool=pool)


class ValkeyTier(IndexedTier[None]):
    """Bounded by `capacity_bytes` of what this host knows to be there, and by the server's own maxmemory."""

    name = "valkey"

    def __init__(
        self,
        client: valkey.Valkey,
        capacity_bytes: int,
        is_pinned: IsPinned = lambda key: False,
        limits: TierLimits = NO_LIMITS,
        clock_s: Clock = time.time,
        refresh_s: float = REFRESH_S,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`steady_s` times the pauses after a failure. Looks at the server once, which blocks for its time limit at most; an absent one is looked for again later."""
        super().__init__(TierIndex(capacity_bytes, is_pinned, limits, clock_s))
        self._client = client
        self._steady_s = steady_s
        self._write_lock = threading.Lock()  # taken before _lock
        self._drops: set[bytes] = set()  # deleted here, perhaps not yet at the server
        self._failures = 0
        self._quiet_until_s = self._full_until_s = 0.0
        self.errors = 0
        self._closed = threading.Event()
        self.refresh_now()
        self._thread = threading.Thread(target=self._run, args=(refresh_s,), name="valkey-refresh", daemon=True)
        self._thread.start()

    # the contract

    def put_many(self, blocks: Sequence[Block]) -> tuple[list[Put], list[bytes]]:
        for block in blocks:
            check_block(block)
        evicted: list[tuple[bytes, Entry[None]]] = []
        with self._write_lock:
            outcomes = [Put.REFUSED] * len(blocks)
            batch: dict[int, Block] = {}
            for index, block in enumerate(blocks):
                with self._lock:
                    known = self._index.known(block)
                if known or any(other.key == block.key for other in batch.values()):
                    outcomes[index] = Put.KNOWN
                    continue
                batch[index] = block
                if sum(len(other.payload) for other in batch.values()) >= BATCH_BYTES:
                    self._write(batch, outcomes, evicted)
                    batch = {}
            self._write(batch, outcomes, evicted)
            with self._lock:
                self._index.refused += outcomes.count(Put.REFUSED)
                return outcomes, [key for key, _ in evicted if key not in self._index]

    def get(self, key: bytes, layout: bytes) -> Block | None:
        check_key(key)
        with self._lock:
            entry = self._index.find(key, layout)
            if entry is None or not self._answers():
                self._index.misses += 1
                return None
            self._index.touch(key)
        value = self._ask(lambda: self._client.get(PREFIX + key))
        block = decode_block(key, value) if isinstance(value, bytes) else None
        with self._lock:
            if block is not None and block.layout == layout:
                self._index.hits += 1
                return block
            self._index.misses += 1
            if self._index.raw(key) is entry and self._answers():  # it answered: evicted by the server, or damaged
                self._index.corrupt += value is not None
                self._index.leave(key)
        if value is not None:
            self._remove([key])
        return None

    def delete(self, key: bytes) -> bool:
        check_key(key)
        with self._write_lock:
            with self._lock:
                held = self._index.raw(key) is not None
                if held:
                    self._index.leave(key)
            if held:
                self._remove([key])
            return held

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._thread.join(timeout=5.0)
        with self._lock:
            self._index.clear()
        self._client.close()  # type: ignore[no-untyped-call]

    # the server

    def _write(self, batch: dict[int, Block], outcomes: list[Put], evicted: list[tuple[bytes, Entry[None]]]) -> None:
        """Makes room and sends a batch; under _write_lock."""
        if not batch or self._closed.is_set() or not self._answers() or self._steady_s() < self._full_until_s:
            return
        victims: list[tuple[bytes, Entry[None]]] = []
        sizes = {index: _size_bytes(block) for index, block in batch.items()}
        with self._lock:
            for index, block in list(batch.items()):
                if block.key in self._index:  # under another layout, or its time is over
                    self._index.leave(block.key)
                if self._index.make_room({block.meta.namespace: sizes[index]}, victims):
                    self._index.enter(block.key, _entry(block, sizes[index]))  # reserved, until the answer is here
                else:
                    del batch[index]
        evicted += victims
        self._remove([key for key, _ in victims])
        answers = self._ask(lambda: self._send(batch))
        with self._lock:
            for place, (index, block) in enumerate(batch.items()):
                if isinstance(answers, list) and answers[place] is True:
                    outcomes[index] = Put.STORED
                    self._drops.discard(block.key)
                elif self._index.raw(block.key) is not None:
                    self._index.leave(block.key)
        if isinstance(answers, list) and any(isinstance(answer, ResponseError) for answer in answers):
            self._full_until_s = self._steady_s() + FULL_PAUSE_S  # out of memory: no use in sending the next at once

    def _send(self, batch: dict[int, Block]) -> list[object]:
        pipe = self._client.pipeline(transaction=False)
        for block in batch.values():
            record = b"".join((encode_header(block, 0), block.payload))
            pipe.set(PREFIX + block.key, record)  # its end of life is in the header: every host sweeps by it
        return list(pipe.execute(raise_on_error=False))  # type: ignore[no-untyped-call]

    def _remove(self, keys: Sequence[bytes]) -> None:
        """Deletes at the server, now or when it is back."""
        if not keys:
            return
        with self._lock:
            self._drops.update(keys)
        if self._answers() and self._ask(lambda: self._client.unlink(*(PREFIX + key for key in keys))) is not None:
            with self._lock:
                self._drops.difference_update(keys)

    def _ask(self, call: Callable[[], object]) -> object:
        """What the server answers, or None when it fails: then it is left alone for a while and its keys are lost."""
        try:
            answer = call()
        except (ValkeyError, OSError) as error:
            if not self._closed.is_set():
                self._failed(error)
            return None
        self._failures = 0
        return answer

    def _failed(self, error: Exception) -> None:
        with self._lock:
            self.errors += 1
            pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**self._failures)
            self._failures += 1
            self._quiet_until_s = self._steady_s() + pause_s
            lost = self._index.clear()
        log.warning("valkey: %s; left alone for %.1f s", type(error).__name__, pause_s)
        self.on_lost(lost)

    def _answers(self) -> bool:
        return self._steady_s() >= self._quiet_until_s

    # what others do

    def refresh_now(self) -> None:
        """Compares the index with the server. Blocks."""
        if self._closed.is_set() or not self._answers():
            return
        with self._write_lock:
            if self._drops:
                self._remove(list(self._drops))
            changed = self._ask(lambda: list(self._compared()))
        if isinstance(changed, list) and changed:
            self.on_lost(changed)

    def _compared(self) -> Iterator[bytes]:
        """Takes in what others put and forgets what is gone; the keys that changed."""
        there = {bytes(name)[len(PREFIX) :] for name in self._client.scan_iter(match=PREFIX + b"*", count=SCAN_COUNT)}
        with self._lock:
            gone = [key for key in self._index.keys() if key not in there]  # noqa: SIM118
            for key in gone:
                self._index.leave(key)
            fresh = [key for key in there if key not in self._index and key not in self._drops and len(key) == 32]
        yield from gone
        for start in range(0, len(fresh), SCAN_COUNT):
            part = fresh[start : start + SCAN_COUNT]
            pipe = self._client.pipeline(transaction=False)
            for key in part:
                pipe.getrange(PREFIX + key, 0, HEADER_BYTES - 1)
            # what is no string under one of our names is somebody's mistake, and costs that key alone
            headers = pipe.execute(raise_on_error=False)  # type: ignore[no-untyped-call]
            for key, header in zip(part, headers, strict=True):
                if isinstance(header, bytes) and self._take_in(key, header):
                    yield key

    def _take_in(self, key: bytes, header: bytes) -> bool:
        decoded = decode_header(key, header)
        if decoded is None:
            return False
        size = decoded.length + HEADER_BYTES + OVERHEAD_BYTES
        entry = Entry(decoded.parent, decoded.layout, decoded.checksum, decoded.length, size, decoded.meta, None)
        with self._lock:
            if key in self._index:
                return False
            self._index.enter(key, entry)
        return True

    def _run(self, refresh_s: float) -> None:
        while not self._closed.wait(refresh_s):
            self.refresh_now()


class ValkeyKeyring(Keyring):
    """Salts beside the records, so that every host has the same; a forgotten one is gone everywhere within SALT_CACHE_S."""

    def __init__(self, client: valkey.Valkey, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._cache: dict[bytes, tuple[float, bytes]] = {}

    def salt(self, namespace: bytes, *, make: bool) -> bytes | None:
        with self._lock:
            held = self._cache.get(namespace)
            if held is not None and self._clock_s() < held[0] + SALT_CACHE_S:
                return held[1]
        name = SALT_PREFIX + namespace
        try:
            found = self._client.get(name)
            if found is None and make:
                self._client.set(name, self.fresh_salt(), nx=True)  # another host may be first: its salt is the one
                found = self._client.get(name)
        except (ValkeyError, OSError) as error:
            log.debug("valkey: no salt: %s", type(error).__name__)
            return None
        if not isinstance(found, bytes) or len(found) != SALT_BYTES:
            return None
        with self._lock:
            self._cache[namespace] = (self._clock_s(), found)
        return found

    def forget(self, namespace: bytes) -> bool:
        """Raises OctavoError when the server cannot be reached: then nothing was destroyed."""
        with self._lock:
            self._cache.pop(namespace, None)
        try:
            return bool(self._client.delete(SALT_PREFIX + namespace))
        except (ValkeyError, OSError) as error:
            raise OctavoError(
                f"the valkey server cannot be reached ({type(error).__name__}): the namespace's key there is not destroyed; try again"
            ) from error


def _size_bytes(block: Block) -> int:
    return len(block.payload) + HEADER_BYTES + OVERHEAD_BYTES


def _entry(block: Block, size: int) -> Entry[None]:
    return Entry(block.parent, block.layout, block.checksum, len(block.payload), size, block.meta, None)
