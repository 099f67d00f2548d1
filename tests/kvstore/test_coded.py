"""CodedTier over a plain one: coded where it pays, marked where it is lossy, unreadable without the key, gone when erased."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash
from octavo.errors import OctavoError
from octavo_kvstore.block import Block, BlockMeta
from octavo_kvstore.codecs.choice import Chooser
from octavo_kvstore.codecs.envelope import HEAD_BYTES, Head, unpack_head
from octavo_kvstore.codecs.forms import RAW
from octavo_kvstore.codecs.samples import sample_payload
from octavo_kvstore.codecs.shape import PayloadShape
from octavo_kvstore.codecs.shapes import ShapeTable
from octavo_kvstore.codecs.values import to_float32
from octavo_kvstore.encryption import FileKeyring, Vault
from octavo_kvstore.pins import PinTable
from octavo_kvstore.store import Store
from octavo_kvstore.testing import LAYOUT, key_of
from octavo_kvstore.tier import Put
from octavo_kvstore.tiers.coded import CodedTier, coded_layout
from octavo_kvstore.tiers.heap import HeapTier

SHAPE = PayloadShape(4, 2, 3, 16, 64, "bfloat16")
SLOW = 1e6
TENANT, OTHER = b"t" * 16, b"o" * 16


def block_of(number: int, meta: BlockMeta = BlockMeta(TENANT)) -> Block:  # noqa: B008 - frozen
    payload = sample_payload(SHAPE, number)
    return Block(key_of(number), b"", LAYOUT, xxhash.xxh3_64_intdigest(payload), payload, meta)


def coded(codec: str = "none", vault: Vault | None = None, *, exact: bool = False, speed: float = SLOW) -> CodedTier:
    """Over memory, on a link of a speed that was measured already."""
    shapes = ShapeTable()
    shapes.tell(LAYOUT, SHAPE, exact=exact)
    tier = CodedTier(HeapTier(64 * 2**20), Chooser(codec), shapes, vault, lambda: 0.0)
    tier.reads.bytes_per_s = speed
    return tier


def below(tier: CodedTier, block: Block) -> bytes:
    """What lies in the medium."""
    found = tier.inner.get(block.key, coded_layout(block.layout))
    assert found is not None
    return bytes(found.payload)


@pytest.mark.parametrize("codec", ["int8", "fp8", "zstd"])
def test_on_a_slow_medium_blocks_shrink_and_come_back_marked(codec: str) -> None:
    tier, block = coded(codec), block_of(1)
    assert tier.put(block)[0] is Put.STORED
    record = below(tier, block)
    assert unpack_head(record).form.lossy and len(record) < 0.6 * len(block.payload)
    found = tier.get(block.key, LAYOUT)
    assert found is not None and found.meta == replace(block.meta, lossy=True) and found.is_intact()
    error = np.abs(to_float32(bytes(found.payload), SHAPE) - to_float32(bytes(block.payload), SHAPE)).max()
    assert 0 < error < 3


def test_on_a_fast_medium_they_stay_as_they_are() -> None:
    tier, block = coded("zstd", speed=1e12), block_of(1)
    tier.put(block)
    assert unpack_head(below(tier, block)).form is RAW and tier.get(block.key, LAYOUT) == block


def test_where_a_worker_asked_for_exactness_every_bit_comes_back() -> None:
    tier, block = coded("zstd", exact=True), block_of(1)
    tier.put(block)
    head = unpack_head(below(tier, block))
    assert head.form.name == "zstd-exact" and not head.lossy
    assert tier.get(block.key, LAYOUT) == block


def test_what_was_quantized_once_is_not_quantized_again() -> None:
    tier, block = coded("int8"), block_of(1, BlockMeta(TENANT, lossy=True))
    tier.put(block)
    assert not unpack_head(below(tier, block)).form.lossy
    assert tier.get(block.key, LAYOUT) == block, "the mark included"


def test_a_lossy_block_is_never_served_where_exactness_is_asked_for() -> None:
    pins = PinTable()
    tier = coded("int8")
    store = Store(HeapTier(2 * 2**20), tier, pins)
    blocks = [block_of(number) for number in range(30)]
    for block in blocks:
        store.put(block)
        assert store.flush(10)
    gone = next(block for block in blocks if store.where(block.key, LAYOUT) == "dram" and block is blocks[0])
    assert store.get(gone.key, LAYOUT, exact=True) is not None, "from DRAM it is what was put"
    for block in blocks:
        store._dram.delete(block.key)  # type: ignore[union-attr]
    assert store.get(blocks[3].key, LAYOUT, exact=True) is None
    found = store.get(blocks[3].key, LAYOUT)
    assert found is not None and found.block.meta.lossy
    assert store.get(blocks[3].key, LAYOUT, exact=True) is None, "nor once it was lifted into DRAM"
    store.close()


def test_encrypted_records_hold_no_plain_byte(tmp_path: Path) -> None:
    vault = Vault(b"secret", FileKeyring(tmp_path / "keyring.json"))
    tier, block = coded("none", vault), block_of(1)
    tier.put(block)
    record = below(tier, block)
    assert tier.get(block.key, LAYOUT) == block
    payload = bytes(block.payload)
    assert not any(payload[at : at + 16] in record for at in range(0, len(payload) - 16, 997))
    tier.put(block_of(2))
    again = coded("none", vault)
    again.put(block)
    assert below(again, block)[HEAD_BYTES:] != record[HEAD_BYTES:], "another nonce each time"


def test_another_secret_is_a_counted_miss(tmp_path: Path) -> None:
    ring = FileKeyring(tmp_path / "keyring.json")
    tier, block = coded("none", Vault(b"secret", ring)), block_of(1)
    tier.put(block)
    wrong = CodedTier(tier.inner, Chooser("none"), ShapeTable(), Vault(b"other", ring))
    assert wrong.get(block.key, LAYOUT) is None
    stats = wrong.stats()
    assert (stats.hits, stats.misses, stats.corrupt) == (0, 1, 0) and wrong.vault and wrong.vault.refused == 1
    assert CodedTier(tier.inner, Chooser("none"), ShapeTable()).get(block.key, LAYOUT) is None, "nor without one"
    assert tier.get(block.key, LAYOUT) == block, "and it is still there for who has the key"


@pytest.mark.parametrize("change", ["on", "off", "secret", "salt"])
def test_what_a_restart_with_other_settings_cannot_open_is_written_anew(tmp_path: Path, change: str) -> None:
    ring = FileKeyring(tmp_path / "keyring.json")
    block = block_of(1)
    first = coded("zstd", None if change == "on" else Vault(b"secret", ring))
    first.put(block)
    if change == "salt":
        ring.forget(TENANT)
    vault = {"on": Vault(b"secret", ring), "off": None, "secret": Vault(b"other", ring), "salt": Vault(b"secret", ring)}
    tier = CodedTier(first.inner, Chooser("none"), ShapeTable(), vault[change])
    lost: list[bytes] = []
    tier.on_lost = lost.extend
    assert tier.contains(block.key, LAYOUT), "nobody has looked yet"
    assert tier.get(block.key, LAYOUT) is None and lost == [block.key]
    assert not tier.contains(block.key) and tier.keys() == [] and tier.get(block.key, LAYOUT) is None
    assert tier.put(block)[0] is Put.STORED and tier.contains(block.key, LAYOUT)
    assert tier.get(block.key, LAYOUT) == block and tier.keys() == [block.key]


def test_a_record_moved_to_another_key_or_tenant_does_not_open(tmp_path: Path) -> None:
    tier = coded("none", Vault(b"secret", FileKeyring(tmp_path / "keyring.json")))
    one, two = block_of(1), block_of(2, BlockMeta(OTHER))
    tier.put(one)
    tier.put(two)
    record = below(tier, one)
    for meta in (TENANT, OTHER):
        moved = Block(two.key, b"", coded_layout(LAYOUT), xxhash.xxh3_64_intdigest(record), record, BlockMeta(meta))
        tier.inner.delete(two.key)
        tier.inner.put(moved)
        assert tier.get(two.key, LAYOUT) is None


def test_erasing_a_namespace_is_at_once_and_the_sweep_reclaims_it(tmp_path: Path) -> None:
    tier = coded("none", Vault(b"secret", FileKeyring(tmp_path / "keyring.json")))
    store = Store(HeapTier(64 * 2**20), tier, PinTable())
    mine, others = [block_of(n) for n in range(8)], [block_of(n, BlockMeta(OTHER)) for n in range(8, 16)]
    for block in (*mine, *others):
        store.put(block)
    assert store.flush(10)
    used = tier.stats().used_bytes
    kept = tier.inner.get(mine[0].key, coded_layout(LAYOUT))
    assert kept is not None
    assert store.delete_namespace(TENANT) == 8
    assert [store.where(block.key, LAYOUT) for block in mine] == [""] * 8
    assert all(store.get(block.key, LAYOUT) for block in others)
    assert tier.stats().used_bytes == used // 2
    tier.inner.put(kept)  # as if a copy of the disk came back
    assert tier.get(mine[0].key, LAYOUT) is None, "its key is gone for good"
    store.put(mine[0])
    assert store.flush(10) and tier.stats().keys == 9
    store.close()


@pytest.mark.parametrize("change", [0, 5, 6, 8, 16, 24, 40, HEAD_BYTES + 100])
def test_a_record_that_is_whole_below_but_wrong_is_forgotten(change: int) -> None:
    tier, block = coded("zstd", exact=True), block_of(1)
    tier.put(block)
    record = bytearray(below(tier, block))
    record[change] ^= 0x41
    tier.inner.delete(block.key)
    tier.inner.put(
        Block(block.key, b"", coded_layout(LAYOUT), xxhash.xxh3_64_intdigest(record), bytes(record), block.meta)
    )
    found = tier.get(block.key, LAYOUT)
    assert found is None or found == block or change == 40, "40: a nonce that nobody looks at"
    if found is None and change != 6:
        assert not tier.contains(block.key) and tier.stats().corrupt == 1


def test_plain_and_coded_records_are_never_taken_for_each_other() -> None:
    tier, block = coded("none"), block_of(1)
    tier.inner.put(block)
    assert tier.get(block.key, LAYOUT) is None and not tier.contains(block.key, LAYOUT)
    assert coded_layout(LAYOUT) != LAYOUT and len(coded_layout(LAYOUT)) == 32


def test_a_head_survives_packing() -> None:
    for head in (Head(RAW, 5, 7, None, False), Head(RAW, 2**40, 2**63, SHAPE, True, b"n" * 12)):
        assert unpack_head(head.pack()) == head and len(head.pack()) == HEAD_BYTES
    with pytest.raises(ValueError, match="envelope"):
        unpack_head(b"short")


def test_a_block_that_a_worker_got_lossy_and_hands_down_again_keeps_its_mark() -> None:
    """Everything here was deleted meanwhile; the worker's pool still has the bytes."""
    store = Store(HeapTier(64 * 2**20), None, PinTable())
    lossy, exact = block_of(1, BlockMeta(TENANT, lossy=True)), block_of(2)
    store.put(lossy)
    store.put(exact)
    assert store.get(lossy.key, LAYOUT) and store.get(exact.key, LAYOUT)
    for block in (lossy, exact):
        store.delete(block.key)
        store.put(replace(block, meta=BlockMeta(TENANT)))
    assert store.get(lossy.key, LAYOUT, exact=True) is None
    assert store.get(exact.key, LAYOUT, exact=True) is not None


def test_a_block_does_not_show_its_payload_when_it_is_printed() -> None:
    block = replace(block_of(1), payload=b"nobody's business")
    assert "business" not in repr(block)


class StuckKeyring(FileKeyring):
    """Cannot forget while it is stuck, as a server that is away."""

    stuck = True

    def forget(self, namespace: bytes) -> bool:
        if self.stuck:
            raise OctavoError("out of reach")
        return super().forget(namespace)


def test_a_key_that_cannot_be_destroyed_now_is_destroyed_later_and_the_blocks_go_at_once(tmp_path: Path) -> None:
    ring = StuckKeyring(tmp_path / "keyring.json")
    tier = coded("none", Vault(b"secret", ring))
    store = Store(HeapTier(64 * 2**20), tier, PinTable())
    for number in range(4):
        store.put(block_of(number))
    assert store.flush(10)
    assert store.delete_namespace(TENANT) == 4 and tier.keys() == []
    assert store.counters()["erasures_due"] == 1 and ring.salt(TENANT, make=False) is not None
    store.sweep()
    assert store.counters()["erasures_due"] == 1
    ring.stuck = False
    store.sweep()
    assert store.counters()["erasures_due"] == 0 and ring.salt(TENANT, make=False) is None
    store.close()
