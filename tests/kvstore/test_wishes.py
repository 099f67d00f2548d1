"""What requests wish of their blocks, in the stores: which tiers, and that what is thrown out goes with all below it."""

from __future__ import annotations

from pathlib import Path

import pytest
from octavo.packing import pack_keys
from octavo.v1 import scheduler_pb2 as pb
from octavo_kvstore.announce import Announcer, Identity
from octavo_kvstore.block import ANYWHERE, DRAM, NVME, REMOTE, BlockMeta, bit_of
from octavo_kvstore.pins import PinTable
from octavo_kvstore.record import decode_header, encode_header
from octavo_kvstore.store import Store
from octavo_kvstore.testing import LAYOUT, key_of, make_block
from octavo_kvstore.tier import Put
from octavo_kvstore.tiers.heap import HeapTier
from octavo_kvstore.tiers.slab import SlabTier
from octavo_kvstore.wire import meta_from, meta_to


@pytest.fixture
def store(tmp_path: Path) -> Store:
    pins = PinTable()
    upper = HeapTier(2**20, pins.is_pinned)
    return Store(upper, SlabTier(tmp_path, 2**22, pins.is_pinned, boot_id="boot"), pins)


@pytest.mark.parametrize(
    ("tiers", "where"),
    [(ANYWHERE, ("dram", "nvme")), (DRAM, ("dram",)), (NVME, ("nvme",)), (DRAM | NVME, ("dram", "nvme"))],
)
def test_a_block_lies_where_it_may_and_nowhere_else(store: Store, tiers: int, where: tuple[str, ...]) -> None:
    assert store.put(make_block(1, meta=BlockMeta(tiers=tiers))) is Put.STORED
    assert store.flush(10)
    assert store.get(key_of(1), LAYOUT) is not None, "a get must not lift it into a tier where it may not lie either"
    assert store._tiers_of(key_of(1)) == where
    store.close()


def test_a_block_for_no_tier_here_is_refused(store: Store) -> None:
    assert store.put(make_block(1, meta=BlockMeta(tiers=REMOTE))) is Put.REFUSED
    assert store.where(key_of(1), LAYOUT) == ""
    store.close()


def test_the_wider_wish_counts_and_survives_records_and_messages() -> None:
    assert BlockMeta(tiers=DRAM).merged(BlockMeta(tiers=NVME)).tiers == DRAM | NVME
    assert BlockMeta(tiers=DRAM).merged(BlockMeta()).tiers == ANYWHERE
    block = make_block(1, meta=BlockMeta(tiers=NVME | REMOTE, pinned=True))
    header = decode_header(block.key, encode_header(block, 1))
    assert header is not None and (header.meta.tiers, header.meta.pinned) == (NVME | REMOTE, True)
    assert meta_from(meta_to(block.meta, 0.0), 0.0).tiers == NVME | REMOTE
    assert [bit_of(name) for name in ("dram", "nvme", "remote", "valkey")] == [DRAM, NVME, REMOTE, REMOTE]


def test_a_key_goes_with_all_that_is_chained_from_it(store: Store) -> None:
    for number, parent in ((1, None), (2, 1), (3, 2), (4, 2), (5, 1), (9, None)):
        store.put(make_block(number, parent=parent))
    assert store.delete_below(key_of(2)) == 3
    assert [number for number in (1, 2, 3, 4, 5, 9) if store.contains(key_of(number), LAYOUT)] == [1, 5, 9]
    assert store.delete_below(key_of(77)) == 0
    store.close()


async def test_the_scheduler_s_orders_are_carried_out(store: Store) -> None:
    announcer = Announcer(store, Identity("s", "b", "a"), "nowhere", lambda address: None)  # type: ignore[arg-type,return-value]
    tag = b"t" * 16
    for number, parent, namespace in ((1, None, tag), (2, 1, tag), (3, None, b"")):
        store.put(make_block(number, parent=parent, meta=BlockMeta(namespace=namespace)))
    announcer._forget(pb.ForgetOrder(keys=pack_keys([key_of(1)])))
    assert store.contains(key_of(2), LAYOUT) and not store.contains(key_of(1), LAYOUT)
    announcer._pin(pb.PinOrder(keys=pack_keys([key_of(3)]), pinned=True))
    assert store.counters()["pinned_keys"] == 1
    announcer._forget(pb.ForgetOrder(namespace=tag))
    assert not store.contains(key_of(2), LAYOUT) and store.contains(key_of(3), LAYOUT)
    announcer._forget(pb.ForgetOrder(keys=pack_keys([key_of(3)]), below=True))
    assert not store.contains(key_of(3), LAYOUT)
    store.close()
