"""The radix tree: matching, splitting, eviction by value, duplicates, pins; and a property test against a plain model."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from octavo.keys import extend_keys
from octavo_scheduler.blocks import OutOfBlocks
from octavo_scheduler.prefix.eviction import HALF_LIFE_US
from octavo_scheduler.prefix.radix import PrefixIndex

ROOT = bytes(32)


def chain(*tokens: int) -> list[bytes]:
    """Keys of blocks of one token each."""
    return extend_keys(ROOT, list(tokens), 1)


def put(index: PrefixIndex, keys: list[bytes], now_us: int = 0, keep: bool = False) -> list[int]:
    """What a sequence does that runs alone: match, compute the rest, index it, leave."""
    matched = index.match(keys, len(keys))
    index.pool.share_all(matched)
    index.hit(matched, now_us)
    table = matched + index.pool.take(len(keys) - len(matched))
    for at in range(len(matched), len(keys)):
        assert index.add(keys[at], table[at], keys[at - 1] if at else None, now_us)
    if not keep:
        drop(index, table, now_us)
    return table


def drop(index: PrefixIndex, table: list[int], now_us: int = 0) -> None:
    index.rest(table, now_us)
    index.pool.drop_all(reversed(table))


def test_one_run_is_one_node_and_a_branch_splits_it() -> None:
    index = PrefixIndex(20)
    put(index, chain(1, 2, 3, 4))
    assert index.nodes == 1
    put(index, chain(1, 2, 7))
    assert index.nodes == 3 and len(index) == 5
    assert index.match_len(chain(1, 2, 3, 9), 4) == 3 and index.match_len(chain(9), 1) == 0
    assert index.check_integrity() == []


def test_a_run_enters_at_once_as_it_would_block_by_block() -> None:
    one, many = PrefixIndex(20), PrefixIndex(20)
    keys = chain(1, 2, 3, 4, 5)
    table = put(one, keys, 7, keep=True)
    assert many.pool.take(5) == table
    assert many.add_run(keys[:2], table[:2], None, 7) and many.add_run(keys[2:], table[2:], keys[1], 7)
    assert (many.nodes, len(many), many.match(keys, 5)) == (one.nodes, len(one), table)
    assert many.check_integrity() == one.check_integrity() == []


def test_a_run_that_cannot_enter_whole_leaves_the_index_as_it_was() -> None:
    index = PrefixIndex(20)
    keys = chain(1, 2, 3, 4)
    table = put(index, keys[:3], keep=True)
    other = index.pool.take(3)
    assert not index.add_run(keys[2:], other[:2], keys[1], 0)  # its first key is there already
    assert not index.add_run(chain(1, 9, 8)[1:], other[:2], keys[0], 0)  # it would branch off within a run
    assert not index.add_run(chain(5, 6), other[:2], chain(5)[0], 0)  # nobody has its parent
    assert not index.add_run(chain(7, 8), [other[0], table[0]], None, 0)  # a block stands for another key
    assert len(index) == 3 and index.match(keys, 4) == table and index.check_integrity() == []


@pytest.mark.parametrize("limit", range(6))
def test_a_match_is_the_longest_run_up_to_its_limit(limit: int) -> None:
    index = PrefixIndex(20)
    table = put(index, chain(1, 2, 3, 4, 5))
    put(index, chain(1, 2, 8))
    assert index.match(chain(1, 2, 3, 4, 9), limit) == table[: min(limit, 4)]
    assert index.match_len(chain(1, 2, 3, 4, 9), limit) == min(limit, 4)


def test_eviction_takes_the_tail_of_the_least_valuable_chain() -> None:
    forgotten: list[int] = []
    index = PrefixIndex(8, forgotten.append)
    old = put(index, chain(1, 2, 3), now_us=1)
    new = put(index, chain(4, 5, 6), now_us=2)
    index.pool.take(1 + 2)
    assert forgotten == [old[2], old[1]]
    index.pool.take(3)
    assert forgotten == [old[2], old[1], old[0], new[2], new[1]]
    assert index.match(chain(4, 5, 6), 3) == new[:1] and index.check_integrity() == []


def test_uses_outlive_a_single_newer_one_and_decay() -> None:
    index = PrefixIndex(5)
    often, once = chain(1, 2), chain(3, 4)
    for _ in range(8):
        put(index, often)
    put(index, once, HALF_LIFE_US)
    index.pool.take(2)
    assert index.match_len(often, 2) == 2 and index.match_len(once, 2) == 0, "eight uses halved are still four"
    index = PrefixIndex(5)
    for _ in range(8):
        put(index, often)
    put(index, once, 4 * HALF_LIFE_US)
    index.pool.take(2)
    assert index.match_len(once, 2) == 2 and index.match_len(often, 2) == 0, "after four half-lives they are half a use"


def test_only_the_part_that_was_matched_grows_warmer() -> None:
    index = PrefixIndex(7)
    put(index, chain(1, 2, 3, 4))
    put(index, chain(1, 2, 9, 8), 1)
    index.pool.take(2)
    assert index.match_len(chain(1, 2, 3, 4), 4) == 2 and index.match_len(chain(1, 2, 9, 8), 4) == 4


def test_a_block_that_costs_more_to_compute_again_stays_longer() -> None:
    index = PrefixIndex(7, block_cost_us=lambda depth: 100.0 * (1 + depth))
    put(index, chain(1, 2, 3, 4))
    put(index, chain(7, 8))
    index.pool.take(2)
    assert index.match_len(chain(1, 2, 3, 4), 4) == 4, "the fourth block of a chain, not the second of a newer one"


def test_a_block_in_use_is_never_evicted_and_leaves_by_its_release() -> None:
    index = PrefixIndex(6)
    held = put(index, chain(1, 2, 3), keep=True)
    put(index, chain(4, 5), 9)
    index.pool.take(2)
    assert index.match(chain(1, 2, 3), 3) == held
    with pytest.raises(OutOfBlocks):
        index.pool.take(1)
    drop(index, held, 10)
    assert len(index.pool.take(1)) == 1 and index.match_len(chain(1, 2, 3), 3) == 2


def test_the_second_block_of_a_key_stays_private() -> None:
    index = PrefixIndex(4)
    first, second = index.pool.take(2)
    assert index.add(ROOT, first, None, 0)
    assert not index.add(ROOT, second, None, 0)
    index.pool.drop(second)
    assert index.pool.cached_blocks == 0 and index.key_of(second) is None and index.key_of(first) == ROOT


def test_a_block_without_its_parent_stays_private() -> None:
    index = PrefixIndex(4)
    (block,) = index.pool.take(1)
    assert not index.add(chain(1, 2)[1], block, chain(1)[0], 0)
    assert len(index) == 0 and index.check_integrity() == []


def test_what_hangs_below_anothers_cached_block_leaves_the_index_with_it() -> None:
    """A sequence computed a prefix that was indexed already, and went on below the other's block; that one is gone."""
    forgotten: list[int] = []
    index = PrefixIndex(5, forgotten.append)
    keys = chain(1, 2, 3)
    theirs = put(index, keys[:2], keep=True)
    mine = index.pool.take(2)
    assert not index.add(keys[0], mine[0], None, 1)
    assert index.add(keys[1], mine[1], keys[0], 1) is False
    drop(index, theirs[1:], 1)
    index.pool.take(1)  # evicts their second block
    assert index.add(keys[1], mine[1], keys[0], 2), "its own takes the place"
    index.pool.drop(theirs[0])
    assert index.pool.free_blocks == 1 and index.pool.cached_blocks == 1
    assert index.pool.take(1) == [theirs[0]]
    assert len(index) == 0 and index.cut_blocks == 1 and forgotten == [theirs[1], theirs[0]]
    assert not index.pool.is_cached(mine[1]) and index.check_integrity() == []


# -- pins and priorities -------------------------------------------------------------------------------------------


def test_pinned_blocks_stay_and_are_not_free() -> None:
    index = PrefixIndex(7)
    pin_me, other = chain(1, 2, 3), chain(4, 5, 6)
    put(index, pin_me)
    put(index, other, 5)
    pin = index.pin(pin_me[:2])
    assert len(pin.blocks) == 2 and index.pool.free_blocks == 4 and index.pins == 1
    index.pool.take(4)
    assert index.match_len(pin_me, 3) == 2
    with pytest.raises(OutOfBlocks):
        index.pool.take(1)
    assert index.unpin(pin) == 2 and not pin.live and index.unpin(pin) == 0
    assert len(index.pool.take(2)) == 2 and len(index) == 0 and index.check_integrity() == []


def test_a_pin_holds_what_is_indexed_and_two_pins_share_a_prefix() -> None:
    index = PrefixIndex(9)
    put(index, chain(1, 2, 3))
    put(index, chain(1, 2, 4))
    first, second = index.pin(chain(1, 2, 3, 99)), index.pin(chain(1, 2, 4))
    assert [len(pin.blocks) for pin in (first, second)] == [3, 3] and index.pool.pinned_blocks == 4
    assert index.unpin(first) == 1 and index.pool.pinned_blocks == 3
    assert not index.pin(chain(8)).live
    assert index.check_integrity() == []


@pytest.mark.parametrize("debt", [1, 2, 4])
@pytest.mark.parametrize("first", [1, 2, 3])
def test_what_is_dropped_while_the_pool_waits_for_it_is_dropped_once(debt: int, first: int) -> None:
    """Ending the pins frees their blocks, and a pool that is to shrink takes them at once."""
    index = PrefixIndex(6)
    keys = chain(1, 2, 3)
    put(index, keys)
    put(index, chain(1, 2, 4))
    index.pin(keys)
    index.pin(chain(1, 2, 4))
    index.pool.retire(1 + debt)
    assert index.pool.debt == debt
    dropped = index.drop(keys[first - 1])
    assert len(dropped) == {1: 4, 2: 3, 3: 1}[first] and keys[first - 1] not in index.block_of
    assert len(index) + len(dropped) <= 4 and index.check_integrity() == [] == index.pool.check_integrity()
    index.drop(keys[0])
    assert len(index) == 0 and index.pool.debt == max(0, debt - 4) and index.check_integrity() == []


def test_a_pin_ends_with_its_time() -> None:
    index = PrefixIndex(5)
    put(index, chain(1, 2))
    index.pin(chain(1, 2), until_us=100)
    assert index.expire(99) == 0 and index.pool.free_blocks == 2
    assert index.expire(100) == 1 and index.pool.free_blocks == 4 and index.expire(101) == 0


def test_an_unpinned_pin_does_not_expire_again() -> None:
    index = PrefixIndex(5)
    put(index, chain(1, 2))
    pin = index.pin(chain(1, 2), until_us=100)
    index.unpin(pin)
    assert index.expire(200) == 0 and index.check_integrity() == []


def test_pins_yield_the_least_priority_first() -> None:
    index = PrefixIndex(7)
    for tokens in ((1, 2), (3, 4), (5, 6)):
        put(index, chain(*tokens))
    index.pin(chain(1, 2), priority=5)
    index.pin(chain(3, 4), priority=1)
    index.pin(chain(5, 6), priority=9)
    assert (
        index.yield_pins(1) == 2
        and index.match_len(chain(3, 4), 2) == 2
        and index.pool.is_cached(index.block_of[chain(3)[0]])
    )
    assert index.yield_pins(3) == 4 and index.pins == 0 and index.yield_pins(1) == 0


def test_priority_doubles_a_value_per_step_until_its_time() -> None:
    index = PrefixIndex(5)
    put(index, chain(1, 2))
    for _ in range(3):
        put(index, chain(3, 4), 1)
    assert index.prioritize(chain(1, 2), 3, until_us=50) == 2 and index.prioritize(chain(9), 3) == 0
    index.pool.drop_all(index.pool.take(1))
    assert index.match_len(chain(3, 4), 2) == 1 and index.match_len(chain(1, 2), 2) == 2
    index.expire(50)
    index.pool.take(2)
    assert index.match_len(chain(3, 4), 2) == 1 and index.match_len(chain(1, 2), 2) == 1


# -- a worker's Hello ----------------------------------------------------------------------------------------------


def test_a_hello_rebuilds_the_tree_in_any_order() -> None:
    index = PrefixIndex(12)
    keys, fork = chain(1, 2, 3), chain(1, 2, 4)
    entries = [(3, keys[2], 1), (2, keys[1], 2), (1, keys[0], -1), (4, fork[2], 1)]
    assert index.adopt(entries, 7) == 4
    assert index.match(keys, 3) == [1, 2, 3] and index.match(fork, 3) == [1, 2, 4]
    assert index.pool.free_blocks == 11 and index.pool.cached_blocks == 4 and index.check_integrity() == []
    assert len(index.pool.take(11)) == 11 and len(index) == 0


def test_a_hello_that_makes_no_sense_indexes_what_does() -> None:
    index = PrefixIndex(6)
    keys = chain(1, 2, 3)
    entries = [
        (1, keys[0], -1),
        (9, b"o" * 32, -1),  # no such block
        (0, b"n" * 32, -1),  # the null block
        (1, b"t" * 32, -1),  # twice
        (2, keys[0], -1),  # the same key
        (3, keys[2], 5),  # its own parent: not resident
        (4, b"c" * 32, 1),  # below one that is not indexed
    ]
    assert index.adopt(entries, 0) == 1
    assert len(index) == 1 and index.check_integrity() == []


class TreeMachine(RuleBasedStateMachine):
    """Sequences that share, duplicate, grow and leave in any order, with pins; the model is a plain set of chains."""

    BLOCKS = 13

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(self.BLOCKS)
        self.running: list[tuple[list[bytes], list[int], int]] = []  # keys, table, blocks offered to the index
        self.copies: list[list[int]] = []
        self.pins: list[object] = []
        self.now_us = 0

    @rule(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=5), blind=st.booleans())
    def start(self, tokens: list[int], blind: bool) -> None:
        """`blind`: it computes all itself, as when two begin at once."""
        self.now_us += 1
        keys, index = chain(*tokens), self.index
        matched = [] if blind else index.match(keys, len(keys))
        need = len(keys) - len(matched) + index.pool.count_cached(matched)
        if need > index.pool.free_blocks:
            return
        index.pool.share_all(matched)
        index.hit(matched, self.now_us)
        self.running.append((keys, matched + index.pool.take(len(keys) - len(matched)), len(matched)))

    @precondition(lambda self: self.running)
    @rule(at=st.integers(0, 9), count=st.integers(1, 3))
    def compute(self, at: int, count: int) -> None:
        """As reports._index_full_blocks: back to the first own block whose parent is not indexed."""
        at %= len(self.running)
        keys, table, walked = self.running[at]
        full = min(len(keys), walked + count)
        while walked < full:
            if walked and keys[walked - 1] not in self.index:
                walked -= 1
                continue
            self.index.add(keys[walked], table[walked], keys[walked - 1] if walked else None, self.now_us)
            assert keys[walked] in self.index
            walked += 1
        self.running[at] = (keys, table, walked)

    @precondition(lambda self: self.running)
    @rule(at=st.integers(0, 9))
    def leave(self, at: int) -> None:
        self.now_us += 1
        _keys, table, _walked = self.running.pop(at % len(self.running))
        drop(self.index, table, self.now_us)

    @precondition(lambda self: self.running)
    @rule(at=st.integers(0, 9))
    def copy(self, at: int) -> None:
        table = list(self.running[at % len(self.running)][1])
        for block in table:
            self.index.pool.hold_transfer(block)
        self.copies.append(table)

    @precondition(lambda self: self.copies)
    @rule()
    def end_copy(self) -> None:
        for block in self.copies.pop(0):
            self.index.pool.drop_transfer(block)

    @rule(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=3), ttl_us=st.sampled_from((0, 3)))
    def pin(self, tokens: list[int], ttl_us: int) -> None:
        self.pins.append(self.index.pin(chain(*tokens), self.now_us + ttl_us if ttl_us else 0))

    @precondition(lambda self: self.pins)
    @rule()
    def unpin(self) -> None:
        self.index.unpin(self.pins.pop(0))  # type: ignore[arg-type]

    @rule()
    def expire(self) -> None:
        self.now_us += 2
        self.index.expire(self.now_us)

    @rule(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=4), priority=st.integers(-2, 2))
    def prioritize(self, tokens: list[int], priority: int) -> None:
        self.index.prioritize(chain(*tokens), priority, self.now_us + 2)

    @rule(count=st.integers(1, 12))
    def need_room(self, count: int) -> None:
        """Every block that counts as free can be had, whatever hangs below what."""
        pool = self.index.pool
        count = min(count, pool.free_blocks)
        taken = pool.take(count)
        held = {block for _keys, table, _walked in self.running for block in table}
        held |= {block for table in self.copies for block in table}
        assert len(set(taken)) == count and not held & set(taken)
        pool.drop_all(taken)

    @invariant()
    def tree_and_pool_agree(self) -> None:
        index = self.index
        assert index.check_integrity() == []
        tables = [table for _keys, table, _walked in self.running]
        assert index.pool.leaked(tables, self.copies) == 0
        for keys, table, _walked in self.running:
            count = index.match_len(keys, len(keys))
            assert [key in index for key in keys] == [True] * count + [False] * (len(keys) - count)
            for key, block in zip(keys, index.match(keys, len(keys)), strict=False):
                assert index.block_of[key] == block
            assert all(index.key_of(block) in (key, None) for key, block in zip(keys, table, strict=True))


TestTreeMachine = TreeMachine.TestCase
TestTreeMachine.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)


def test_victims_come_in_the_order_of_their_value_whatever_happened_to_them() -> None:
    """The heap with its void entries against a plain minimum over all leaves."""
    draw = Random(5)
    index = PrefixIndex(201)
    prompts = [chain(group, *(group * 10 + at for at in range(1, draw.randint(2, 6)))) for group in range(30)]
    for turn in range(600):
        put(index, draw.choice(prompts), turn * 1_000_000)
    scores = {}
    for keys in prompts:
        if index.match_len(keys, len(keys)):
            node = index._node(index.block_of[keys[-1]])
            scores[keys[0]] = index._score(node)
    gone: list[bytes] = []
    while len(index):
        index.pool.take(index.pool.empty_blocks + 1)
        gone += [key for key in scores if key not in index and key not in gone]
    assert gone == sorted(scores, key=lambda key: scores[key])
