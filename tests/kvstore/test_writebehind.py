"""The queue between the tiers: bounded, readable while it waits, and never a gap."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest
from octavo_kvstore.block import Block
from octavo_kvstore.testing import LAYOUT, OTHER_LAYOUT, key_of, make_block
from octavo_kvstore.tier import Put
from octavo_kvstore.tiers.heap import HeapTier
from octavo_kvstore.writebehind import BATCH_BLOCKS, LINGER_S, WriteBehind


class GatedTier(HeapTier):
    """Commits only when the gate is open; counts commits."""

    def __init__(self) -> None:
        super().__init__(10 * 2**20)
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.batches: list[int] = []
        self.fail = False

    def put_many(self, blocks: Sequence[Block]) -> tuple[list[Put], list[bytes]]:
        self.entered.set()
        assert self.gate.wait(10)
        self.batches.append(len(blocks))
        if self.fail:
            raise RuntimeError("no disk")
        return super().put_many(blocks)


def test_blocks_are_readable_while_they_wait_and_written_in_batches() -> None:
    tier, said = GatedTier(), []
    queue = WriteBehind(tier, 10 * 2**20, said.extend)
    assert queue.offer(make_block(0))
    assert tier.entered.wait(10)
    for number in range(1, 101):
        assert queue.offer(make_block(number))
    assert queue.offer(make_block(5)), "a known one is not queued twice"
    assert not queue.offer(make_block(5, layout=OTHER_LAYOUT))
    for number in (0, 100):
        assert queue.contains(key_of(number)) and queue.get(key_of(number)) == make_block(number)
    tier.gate.set()
    assert queue.flush(10)
    assert tier.batches[0] == 1 and sum(tier.batches) == 101 and max(tier.batches) <= BATCH_BLOCKS
    queue.close(10)
    assert set(said) == {key_of(number) for number in range(101)}
    assert queue.written == 101 and queue.waiting_bytes == 0
    assert tier.get(key_of(100), LAYOUT) == make_block(100)


def test_a_full_queue_refuses() -> None:
    tier = GatedTier()
    queue = WriteBehind(tier, 7000, lambda keys: None)
    assert queue.offer(make_block(0))
    assert tier.entered.wait(10)
    assert queue.offer(make_block(1)) and queue.offer(make_block(2))
    assert not queue.offer(make_block(3))
    assert queue.dropped == 1 and queue.waiting_bytes == 6000
    tier.gate.set()
    queue.close(10)
    assert not queue.offer(make_block(4)), "closed"


def test_discard_waits_for_the_commit_that_writes_the_key() -> None:
    tier = GatedTier()
    queue = WriteBehind(tier, 10 * 2**20, lambda keys: None)
    queue.offer(make_block(0))
    assert tier.entered.wait(10)
    queue.offer(make_block(1))
    assert queue.discard(key_of(1)) and not queue.contains(key_of(1))
    threading.Timer(0.02, tier.gate.set).start()
    assert queue.discard(key_of(0))
    assert tier.contains(key_of(0)), "the commit ended before discard returned"
    assert not queue.discard(key_of(9))
    queue.close(10)


@pytest.mark.parametrize("fail", [True, False])
def test_a_tier_that_raises_does_not_end_the_thread(fail: bool) -> None:
    tier = GatedTier()
    tier.gate.set()
    tier.fail = fail
    queue = WriteBehind(tier, 10 * 2**20, lambda keys: None)
    queue.offer(make_block(0))
    assert queue.flush(10)
    tier.fail = False
    queue.offer(make_block(1))
    assert queue.flush(10)
    assert tier.contains(key_of(1)) and queue.refused == int(fail)
    queue.close(10)


def test_close_in_time_drops_what_is_left() -> None:
    tier = GatedTier()
    queue = WriteBehind(tier, 10 * 2**20, lambda keys: None)
    queue.offer(make_block(0))
    assert tier.entered.wait(10)
    queue.offer(make_block(1))
    threading.Timer(0.1, tier.gate.set).start()
    queue.close(0.01)
    assert queue.dropped == 1 and not queue.contains(key_of(1))


def test_a_payload_is_let_go_exactly_once_whatever_becomes_of_it() -> None:
    tier, gone = GatedTier(), []
    queue = WriteBehind(tier, 9000, lambda keys: None)

    def offer(number: int) -> bool:
        return queue.offer(make_block(number), lambda: gone.append(number))

    assert offer(0) and tier.entered.wait(10)
    assert offer(1) and offer(1) and gone == [1], "known already: the first one's payload serves"
    assert queue.discard(key_of(1)) and gone == [1, 1]
    assert offer(2) and offer(3) and offer(4) and not offer(5) and gone == [1, 1, 5], "no room"
    tier.gate.set()
    assert queue.flush(10) and sorted(gone) == [0, 1, 1, 2, 3, 4, 5]
    tier.fail = True
    assert offer(6) and queue.flush(10) and gone[-1] == 6
    queue.close(10)
    assert not offer(7) and gone[-1] == 7


def test_blocks_that_come_one_by_one_are_committed_together() -> None:
    tier = GatedTier()
    tier.gate.set()
    queue = WriteBehind(tier, 10 * 2**20, lambda keys: None)
    for number in range(5):
        assert queue.offer(make_block(number))
    assert queue.flush(10) and sum(tier.batches) == 5 and len(tier.batches) <= 2
    queue.close(10)


class Between(threading.Condition):
    """Does something once, right after the lock was let go."""

    then: Callable[[], object] | None = None

    def __exit__(self, *given: object) -> None:
        super().__exit__(*given)  # type: ignore[arg-type]
        then, self.then = self.then, None
        if then is not None:
            then()


def test_a_block_offered_anew_while_it_is_taken_back_keeps_its_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo_kvstore.writebehind.threading.Condition", Between)
    tier, gone = GatedTier(), []
    queue = WriteBehind(tier, 10 * 2**20, lambda keys: None)
    monkeypatch.undo()
    changed = queue._changed
    assert isinstance(changed, Between)
    assert queue.offer(make_block(0)) and tier.entered.wait(10)
    assert queue.offer(make_block(1), lambda: gone.append("first"))
    changed.then = lambda: queue.offer(make_block(1), lambda: gone.append("second"))
    assert queue.discard(key_of(1)) and queue.contains(key_of(1))
    assert gone == ["first"]
    tier.gate.set()
    assert queue.flush(10) and gone == ["first", "second"]
    queue.close(10)


def test_what_was_taken_back_while_it_lingered_is_no_commit_and_ends_a_flush() -> None:
    tier = GatedTier()
    tier.gate.set()
    queue = WriteBehind(tier, 10 * 2**20, lambda keys: None)
    assert queue.offer(make_block(0)) and queue.flush(10)
    tier.gate.clear()
    tier.entered.clear()
    assert queue.offer(make_block(1))
    time.sleep(LINGER_S / 4)
    assert queue.discard(key_of(1))
    assert queue.flush(0.01) and not tier.entered.wait(3 * LINGER_S)
    tier.gate.set()
    queue.close(10)
    assert tier.batches == [1]
