"""The remote tier against scripted peers: right blocks, resumed streams, and every failure a miss within the stall limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace

import pytest
import xxhash
from octavo_kvstore.block import Block
from octavo_kvstore.codecs.choice import Chooser
from octavo_kvstore.codecs.forms import INT8
from octavo_kvstore.codecs.samples import sample_payload
from octavo_kvstore.codecs.shape import PayloadShape
from octavo_kvstore.peers.book import FIRST_PAUSE_S, MAX_PAUSE_S, Peer, PeerBook
from octavo_kvstore.peers.pieces import WINDOW_BYTES, Ask, PeerFailed, Piece, RecordHead
from octavo_kvstore.testing import LAYOUT, is_right, key_of, make_block
from octavo_kvstore.tiers.remote import RESUMES, RemoteTier, Source

STALL_S = 0.1
SHAPE = PayloadShape(4, 2, 3, 16, 64, "bfloat16")


def pieces_of(blocks: list[Block], ask: Ask, size: int) -> list[Piece]:
    """What an honest peer sends for an ask."""
    held = {block.key: block for block in blocks}
    sent: list[Piece] = []
    for index, key in enumerate(ask.keys):
        block = held.get(key)
        if block is None:
            return [*sent, Piece(index, 0, b"", 0, None, True)]
        data = bytes(block.payload)
        head = RecordHead(block.parent, "raw", len(data), block.checksum, len(data), block.checksum, None, block.meta)
        start = ask.offset if not index and ask.record_checksum == block.checksum else 0
        for offset in range(start, len(data), size):
            part = data[offset : offset + size]
            checksum = xxhash.xxh3_64_intdigest(part)
            sent.append(Piece(index, offset, part, checksum, head if offset == start else None, False))
    return [*sent, Piece(len(ask.keys), 0, b"", 0, None, True)]


Mangle = Callable[[int, list[Piece]], list[Piece | Exception | float]]
"""(number of the stream, its pieces) -> what comes instead; an exception breaks the stream, a float is silence in seconds."""


@dataclass
class FakePeer:
    blocks: list[Block]
    mangle: Mangle = lambda number, pieces: list(pieces)
    piece_bytes: int = 1000
    asks: list[Ask] = field(default_factory=list)
    granted: int = 0

    def open(self, ask: Ask) -> FakeStream:
        self.asks.append(ask)
        return FakeStream(self, self.mangle(len(self.asks) - 1, pieces_of(self.blocks, ask, self.piece_bytes)))


class FakeStream:
    def __init__(self, peer: FakePeer, script: list[Piece | Exception | float]) -> None:
        self._peer, self._script = peer, script

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        for item in self._script:
            if isinstance(item, Exception):
                raise item
            if isinstance(item, float):
                await asyncio.sleep(item)
            else:
                yield item

    async def grant(self, size_bytes: int) -> None:
        self._peer.granted += size_bytes

    def cancel(self) -> None:
        pass


class World:
    """A remote tier over fake peers by address; time stands still unless a test moves it."""

    def __init__(self, **peers: FakePeer) -> None:
        self.now_s = 0.0
        self.peers = peers
        self.tier = RemoteTier(
            PeerBook("me", {name: name for name in peers}),
            lambda address, ask: peers[address].open(ask),
            Chooser("zstd"),
            STALL_S,
            lambda: self.now_s,
        )

    async def fetch(self, numbers: range, *sources: Source, exact: bool = False) -> list[Block]:
        keys = [key_of(number) for number in numbers]
        given = sources or [Source(name, 0, len(keys)) for name in self.peers]
        return [block async for block in self.tier.fetch(keys, LAYOUT, given, exact=exact)]


def chain(count: int, size: int = 3000) -> list[Block]:
    return [make_block(number, size, parent=number - 1 if number else None) for number in range(count)]


async def test_a_run_comes_whole_and_in_order() -> None:
    world = World(far=FakePeer(chain(8)))
    got = await world.fetch(range(8))
    assert got == chain(8) and all(map(is_right, got))
    assert len(world.peers["far"].asks) == 1, "one stream for the run"
    counters = world.tier.counters
    assert (counters.blocks, counters.bytes, counters.misses, counters.failed) == (8, 8 * 3000, 0, 0)


async def test_it_ends_at_the_first_miss() -> None:
    world = World(far=FakePeer(chain(3)))
    assert await world.fetch(range(8)) == chain(3)
    assert world.tier.counters.misses == 1
    assert world.tier.book.all()[0].answers(0), "a miss is no failure"


async def test_a_wrong_hint_is_a_miss_and_no_hint_asks_nobody() -> None:
    world = World(far=FakePeer(chain(3)))
    assert await world.fetch(range(3), Source("nobody", 0, 3)) == []
    assert world.peers["far"].asks == []


async def test_two_peers_give_one_run() -> None:
    blocks = chain(8)
    world = World(one=FakePeer(blocks[:4]), two=FakePeer(blocks[4:]))
    assert await world.fetch(range(8), Source("one", 0, 4), Source("two", 4, 4)) == blocks
    assert [len(peer.asks) for peer in world.peers.values()] == [1, 1]
    assert world.tier.run([Source("one", 0, 4), Source("two", 4, 4)], 0, 8) == 8
    assert world.tier.run([Source("one", 0, 4), Source("two", 5, 3)], 0, 8) == 4


async def test_where_one_misses_another_goes_on() -> None:
    blocks = chain(8)
    world = World(one=FakePeer(blocks[:5]), two=FakePeer(blocks))
    world.tier.book.find("one").link.observe(10**9, 1.0)  # type: ignore[union-attr]
    assert await world.fetch(range(8)) == blocks


async def test_a_broken_stream_goes_on_where_it_broke() -> None:
    def broken(number: int, pieces: list[Piece]) -> list[Piece | Exception | float]:
        return [*pieces[:5], PeerFailed("gone")] if number == 0 else list(pieces)

    world = World(far=FakePeer(chain(4), broken))  # three pieces a block: it breaks inside block 1
    assert await world.fetch(range(4)) == chain(4)
    again = world.peers["far"].asks[1]
    assert again.keys == tuple(key_of(number) for number in (1, 2, 3))
    assert (again.offset, again.record_checksum) == (2000, chain(4)[1].checksum)
    assert world.tier.counters.resumed == 1


async def test_a_record_that_changed_meanwhile_begins_anew() -> None:
    """The peer evicted and coded the block again: other bytes, so the part that is here is of no use."""

    def broken(number: int, pieces: list[Piece]) -> list[Piece | Exception | float]:
        return [*pieces[:2], PeerFailed("gone")] if number == 0 else list(pieces_of(chain(1), whole, 1000))

    whole = Ask((key_of(0),), LAYOUT, False, "none", 0.0)
    world = World(far=FakePeer(chain(1), broken))
    assert await world.fetch(range(1)) == chain(1)


async def test_a_bad_piece_is_asked_for_again_once_it_is_seen() -> None:
    def flipped(number: int, pieces: list[Piece]) -> list[Piece | Exception | float]:
        if number == 0:
            pieces[1] = replace(pieces[1], data=b"x" * len(pieces[1].data))
        return list(pieces)

    world = World(far=FakePeer(chain(2), flipped))
    assert await world.fetch(range(2)) == chain(2)
    assert world.tier.counters.corrupt == 1


async def test_a_peer_that_always_lies_is_left_alone() -> None:
    def lying(number: int, pieces: list[Piece]) -> list[Piece | Exception | float]:
        return [replace(piece, data=b"x" * len(piece.data)) for piece in pieces]

    world = World(far=FakePeer(chain(2), lying))
    assert await world.fetch(range(2)) == []
    assert len(world.peers["far"].asks) == 1 + RESUMES
    assert await world.fetch(range(2)) == [] and len(world.peers["far"].asks) == 1 + RESUMES, "not asked again at once"
    assert world.tier.run([Source("far", 0, 2)], 0, 2) == 0
    world.now_s += FIRST_PAUSE_S + 0.01
    assert world.tier.run([Source("far", 0, 2)], 0, 2) == 2


@pytest.mark.parametrize("after", [0, 4])
async def test_a_silent_peer_costs_the_stall_limit_and_no_more(after: int) -> None:
    def silent(number: int, pieces: list[Piece]) -> list[Piece | Exception | float]:
        return [*pieces[:after], 30.0]

    world = World(far=FakePeer(chain(4), silent))
    began_s = time.monotonic()
    got = await world.fetch(range(4))
    assert time.monotonic() - began_s < 5 and got == chain(4)[: len(got)]
    assert not world.tier.book.all()[0].answers(world.now_s)


async def test_after_a_dead_peer_the_next_one_is_asked() -> None:
    def dead(number: int, pieces: list[Piece]) -> list[Piece | Exception | float]:
        return [PeerFailed("UNAVAILABLE")]

    world = World(one=FakePeer(chain(4), dead), two=FakePeer(chain(4)))
    assert await world.fetch(range(4)) == chain(4)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda p: [replace(p[0], index=3), *p[1:]],
        lambda p: [replace(p[0], offset=8), *p[1:]],
        lambda p: [replace(p[0], head=None), *p[1:]],
        lambda p: [replace(p[0], head=replace(p[0].head, record_bytes=10)), *p[1:]],
        lambda p: [replace(p[0], head=replace(p[0].head, record_bytes=2**60)), *p[1:]],
        lambda p: [replace(p[0], head=replace(p[0].head, record_checksum=1)), *p[1:]],
        lambda p: [replace(p[0], head=replace(p[0].head, payload_checksum=1)), *p[1:]],
        lambda p: [replace(p[0], head=replace(p[0].head, payload_bytes=1)), *p[1:]],
        lambda p: [replace(p[0], head=replace(p[0].head, form="unheard of")), *p[1:]],
        lambda p: [replace(p[0], head=replace(p[0].head, form="int8")), *p[1:]],
        lambda p: p[:-1],
        lambda p: p[1:],
        lambda p: [p[1], p[0], *p[2:]],
    ],
)
async def test_whatever_a_peer_does_wrong_is_a_miss(wrong: Callable[[list[Piece]], list[Piece]]) -> None:
    world = World(far=FakePeer(chain(1), lambda number, pieces: list(wrong(pieces))))
    got = await world.fetch(range(1))
    assert all(map(is_right, got))
    assert world.tier.counters.failed or got == chain(1)


def coded(block: Block, lossy_before: bool = False) -> Mangle:
    record = INT8.encode(bytes(block.payload), SHAPE) or b""
    sum_ = xxhash.xxh3_64_intdigest(record)
    head = RecordHead(
        b"",
        "int8",
        len(record),
        sum_,
        SHAPE.payload_bytes,
        block.checksum,
        SHAPE,
        replace(block.meta, lossy=lossy_before),
    )
    piece = Piece(0, 0, record, sum_, head, False)
    return lambda number, pieces: [piece, Piece(1, 0, b"", 0, None, True)]


async def test_a_coded_block_is_decoded_and_marked() -> None:
    payload = sample_payload(SHAPE)
    block = Block(key_of(0), b"", LAYOUT, xxhash.xxh3_64_intdigest(payload), payload)
    world = World(far=FakePeer([block], coded(block)))
    (got,) = await world.fetch(range(1))
    assert got.payload == INT8.decode(INT8.encode(payload, SHAPE) or b"", SHAPE)
    assert got.is_intact() and got.payload != payload and got.meta.lossy
    assert await world.fetch(range(1), exact=True) == [], "and never given where exactness is asked for"


async def test_credit_is_given_back_as_blocks_are_taken() -> None:
    blocks = chain(6, WINDOW_BYTES // 4)
    peer = FakePeer(blocks, piece_bytes=2**20)
    world = World(far=peer)
    taken = 0
    async for _ in world.tier.fetch([b.key for b in blocks], LAYOUT, [Source("far", 0, 6)], exact=False):
        taken += WINDOW_BYTES // 4
        assert peer.granted <= taken
    assert peer.granted > WINDOW_BYTES // 2


async def test_a_reader_that_leaves_ends_the_stream() -> None:
    world = World(far=FakePeer(chain(4)))
    blocks = world.tier.fetch([key_of(0)], LAYOUT, [Source("far", 0, 1)], exact=False)
    await anext(blocks)
    await blocks.aclose()
    assert len(asyncio.all_tasks()) == 1


def test_pauses_grow_and_end_with_an_answer() -> None:
    peer = Peer("far", "address")
    for expected in (0.5, 1.0, 2.0):
        peer.failed(10.0)
        assert not peer.answers(10.0 + expected - 0.01) and peer.answers(10.0 + expected)
    for _ in range(20):
        peer.failed(10.0)
    assert peer.answers(10.0 + MAX_PAUSE_S)
    peer.answered()
    assert peer.answers(10.0)


def test_the_book_follows_the_scheduler_and_keeps_what_was_given() -> None:
    book = PeerBook("me", {"fixed": "there:1"})
    book.tell({"me": "here:1", "other": "far:1", "fixed": "elsewhere:1"})
    assert {(peer.store_id, peer.address) for peer in book.all()} == {("fixed", "there:1"), ("other", "far:1")}
    other = book.find("other")
    assert other is not None
    other.link.observe(100, 1.0)
    book.tell({"other": "far:1"})
    assert book.find("other") is other
    book.tell({"other": "far:2"})
    assert book.find("other") is not other
    book.tell({})
    assert [peer.store_id for peer in book.all()] == ["fixed"]
