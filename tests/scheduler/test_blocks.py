"""The block pool: holders, forks, pins, and a stateful property test with the index against a plain model."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule
from octavo_scheduler.blocks import BlockPool, OutOfBlocks
from octavo_scheduler.prefix.radix import PrefixIndex


def pool(num_blocks: int = 5) -> BlockPool:
    return BlockPool(num_blocks, lambda count: None)


def test_the_null_block_is_never_given() -> None:
    blocks = pool()
    assert sorted(blocks.take(4)) == [1, 2, 3, 4]
    with pytest.raises(OutOfBlocks):
        blocks.take(1)


def test_a_pool_without_a_usable_block_is_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks"):
        pool(1)


def test_what_came_back_is_taken_before_what_was_never_used() -> None:
    blocks = pool(1000)  # more than are unwrapped at once
    table = blocks.take(300)
    assert table == [*range(1, 301)] and blocks.empty_blocks == 699
    blocks.drop_all([5, 3])
    assert blocks.take(4) == [3, 5, 301, 302]
    blocks.retire(600)
    assert (blocks.empty_blocks, blocks.usable_blocks, blocks.check_integrity()) == (97, 399, [])
    assert len(set(blocks.take(97))) == 97 and blocks.empty_blocks == 0


def test_what_was_never_given_out_is_retired_from_the_pools_end_on_and_comes_back_in_its_place() -> None:
    blocks = pool(1000)
    blocks.drop_all(blocks.take(300))
    blocks.retire(650)  # more than were never unwrapped
    assert (blocks.usable_blocks, blocks.empty_blocks, blocks.retired_blocks) == (349, 349, 650)
    table = blocks.take(349)
    assert max(table) < 1000 - 650 + 1 and blocks.check_integrity() == []
    assert blocks.restore(40) == 40 and blocks.check_integrity() == []
    assert sorted(blocks.take(40)) == [*range(350, 390)]
    blocks.drop_all(table)
    assert blocks.restore(1000) == 610 and blocks.usable_blocks == blocks.num_blocks - 1
    assert len(set(blocks.take(959))) == 959 and blocks.check_integrity() == []


def test_a_block_is_free_when_its_last_holder_lets_go() -> None:
    blocks = pool()
    (block,) = blocks.take(1)
    blocks.hold_transfer(block)
    assert not blocks.drop(block)
    assert blocks.free_blocks == 3
    assert blocks.drop_transfer(block)
    assert blocks.free_blocks == 4


def test_a_double_free_is_an_error() -> None:
    blocks = pool()
    (block,) = blocks.take(1)
    blocks.drop(block)
    with pytest.raises(ValueError, match="no sequence holder"):
        blocks.drop(block)
    with pytest.raises(ValueError, match="no transfer holder"):
        blocks.drop_transfer(block)
    with pytest.raises(ValueError, match="free"):
        blocks.share(block)


def test_a_fork_shares_full_blocks_and_owns_the_partial_one() -> None:
    blocks = pool(9)
    table = blocks.take(3)
    fork = blocks.fork(table, 2, 1)
    assert fork[:2] == table[:2] and len(fork) == 3 and fork[2] not in table
    assert not blocks.is_exclusive(table[0]) and blocks.is_exclusive(table[2])
    whole = blocks.fork(fork, 2, 0)
    assert whole == table[:2], "nothing is partial: nothing is taken"
    assert blocks.drop_all(reversed(table)) == 1, "the shared ones have other owners"
    assert blocks.drop_all(reversed(fork)) == 1 and blocks.drop_all(whole) == 2
    assert blocks.free_blocks == 8 and blocks.leaked([], []) == 0


def test_a_fork_without_a_free_block_takes_nothing() -> None:
    blocks = pool(3)
    table = blocks.take(2)
    with pytest.raises(OutOfBlocks):
        blocks.fork(table, 1, 1)
    assert blocks.leaked([table], []) == 0


def test_a_pin_needs_an_indexed_block_and_ends_once() -> None:
    index = PrefixIndex(5)
    (block,) = index.pool.take(1)
    with pytest.raises(ValueError, match="not indexed"):
        index.pool.hold_pin(block)
    index.add(b"k" * 32, block, None, 0)
    index.pool.hold_pin(block)
    index.pool.drop(block)
    assert index.pool.free_blocks == 3 and index.pool.cached_blocks == 0 and index.pool.pinned_blocks == 1
    assert index.pool.drop_pin(block) and index.pool.free_blocks == 4 and index.pool.cached_blocks == 1
    with pytest.raises(KeyError):
        index.pool.drop_pin(block)


def test_only_what_someone_holds_can_be_indexed_and_only_free_blocks_adopted() -> None:
    blocks = pool()
    with pytest.raises(ValueError, match="holds nothing"):
        blocks.hold_index(1)
    (block,) = blocks.take(1)
    with pytest.raises(ValueError, match="not free"):
        blocks.adopt([block])
    blocks.adopt([2, 3])
    assert blocks.cached_blocks == 2 and blocks.free_blocks == 3 and blocks.check_integrity() == []


def test_a_leak_is_counted() -> None:
    blocks = pool()
    table = blocks.take(2)
    assert blocks.leaked([table], []) == 0
    assert blocks.leaked([], []) == 2
    assert blocks.leaked([table], [[table[0]]]) == 1


class PoolMachine(RuleBasedStateMachine):
    """Any order of takes, shares, transfers, index entries and drops, against counters."""

    tables = Bundle("tables")
    transfers = Bundle("transfers")

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(9)
        self.pool = self.index.pool
        self.sequences: Counter[int] = Counter()
        self.copies: Counter[int] = Counter()
        self.keys = 0

    @rule(target=tables, count=st.integers(0, 4))
    def take(self, count: int) -> tuple[int, ...]:
        if count > self.pool.free_blocks:
            with pytest.raises(OutOfBlocks):
                self.pool.take(count)
            return ()
        taken = self.pool.take(count)
        assert 0 not in taken and not any(self.sequences[b] or self.copies[b] for b in taken)
        self.sequences.update(taken)
        return tuple(taken)

    @rule(target=tables, table=tables)
    def share(self, table: tuple[int, ...]) -> tuple[int, ...]:
        held = tuple(block for block in table if self.sequences[block])
        for block in held:
            self.pool.share(block)
        self.sequences.update(held)
        return held

    @rule(table=consumes(tables))
    def drop(self, table: tuple[int, ...]) -> None:
        for block in reversed(table):
            self.sequences[block] -= 1
            assert self.pool.drop(block) == (self.sequences[block] == 0 and self.copies[block] == 0)

    @rule(target=transfers, table=tables)
    def start_transfer(self, table: tuple[int, ...]) -> tuple[int, ...]:
        held = tuple(block for block in table if self.sequences[block])
        for block in held:
            self.pool.hold_transfer(block)
        self.copies.update(held)
        return held

    @rule(blocks=consumes(transfers))
    def end_transfer(self, blocks: tuple[int, ...]) -> None:
        for block in blocks:
            self.copies[block] -= 1
            self.pool.drop_transfer(block)

    @rule(table=tables)
    def add_to_index(self, table: tuple[int, ...]) -> None:
        for block in table:
            if self.sequences[block] and self.index.key_of(block) is None:
                self.keys += 1
                assert self.index.add(self.keys.to_bytes(32, "big"), block, None, self.keys)

    @precondition(lambda self: self.keys > 0)
    @rule(data=st.data())
    def match_and_share(self, data: st.DataObject) -> None:
        key = data.draw(st.integers(1, self.keys)).to_bytes(32, "big")
        for block in self.index.match([key], 1):
            self.pool.share(block)
            self.pool.drop(block)

    @invariant()
    def holders_agree(self) -> None:
        assert self.index.check_integrity() == []
        held = {b for b in range(1, 9) if self.sequences[b] or self.copies[b]}
        assert self.pool.free_blocks == 8 - len(held)
        tables = [[b] * n for b, n in self.sequences.items() if n > 0]
        copies = [[b] * n for b, n in self.copies.items() if n > 0]
        assert self.pool.leaked(tables, copies) == 0


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
