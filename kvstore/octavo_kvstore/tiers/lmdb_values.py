"""The NVMe tier with payloads in LMDB: one environment, one record per block (see `octavo_kvstore.record`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import xxhash

from octavo_kvstore.block import Block, Payload
from octavo_kvstore.index import Clock, Entry, IsPinned
from octavo_kvstore.limits import NO_LIMITS, TierLimits
from octavo_kvstore.record import HEADER_BYTES, Header, decode_header, encode_header
from octavo_kvstore.tier import Lane
from octavo_kvstore.tiers.nvme import PAGE_BYTES, NvmeTier

_PAGE_HEADER_BYTES = 16


def disk_bytes(payload_bytes: int) -> int:
    """What a block takes in the file: LMDB gives large values whole pages with one 16-byte header."""
    return -(-(_PAGE_HEADER_BYTES + HEADER_BYTES + payload_bytes) // PAGE_BYTES) * PAGE_BYTES


def budget_bytes(map_bytes: int) -> int:
    """How much of the map blocks may fill: pages freed by a commit are late, and the tree itself needs some."""
    return max(0, map_bytes * 15 // 16 - 3 * min(16 * 2**20, map_bytes // 16))


class LmdbTier(NvmeTier[None]):
    """Bounded by the map size: the file never outgrows `map_bytes`."""

    backend = "lmdb"

    def __init__(
        self,
        path: Path,
        map_bytes: int,
        is_pinned: IsPinned = lambda key: False,
        boot_id: str | None = None,
        limits: TierLimits = NO_LIMITS,
        clock_s: Clock = time.time,
    ) -> None:
        """See NvmeTier."""
        whole = max(map_bytes // PAGE_BYTES, 64) * PAGE_BYTES
        super().__init__(path, budget_bytes(whole), whole, is_pinned, boot_id, limits, clock_s)

    def _size_on_disk(self, payload_bytes: int) -> int:
        return disk_bytes(payload_bytes)

    def _load_record(self, key: bytes, value: memoryview, header: Header) -> tuple[None, int] | None:
        return (None, disk_bytes(header.length)) if len(value) == HEADER_BYTES + header.length else None

    def _read_payload(
        self, key: bytes, entry: Entry[None], room: memoryview | None, lane: Lane | None
    ) -> Payload | None:
        environment = self._env
        if environment is None:
            return None
        self._check_file()
        with environment.begin(buffers=True) as transaction:
            record: memoryview | None = transaction.get(key)
            if record is None:
                return None
            header = decode_header(key, bytes(record[:HEADER_BYTES]))
            if header is None or header.checksum != entry.checksum or header.layout != entry.layout:
                return None
            if len(record) != HEADER_BYTES + header.length:
                return None
            if room is None:
                payload: Payload = bytes(record[HEADER_BYTES:])
            else:
                payload = room[: header.length]
                payload[:] = record[HEADER_BYTES:]
        return payload if xxhash.xxh3_64_intdigest(payload) == entry.checksum else None

    def _write_records(self, drops: dict[bytes, Entry[None]], fresh: Sequence[tuple[int, Block]]) -> list[None]:
        assert self._env is not None
        with self._env.begin(write=True) as transaction:
            for key in drops:
                transaction.delete(key)
            for number, block in fresh:
                value = b"".join((encode_header(block, number), block.payload))
                transaction.put(block.key, value)
        self._settle(drops)
        return [None] * len(fresh)
