"""The blocks of one worker's pool and who holds each of them.

A block has holders: sequences, transfers, pins, the index. It is free when it has none; one that only the index holds is
cached, and counts as free because eviction takes it at once. Block 0 is the null block and is never allocated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import repeat

_STATE_OF = bytes((0, 2, 3, 4, 4, 4)) + bytes(250)
"""Sequences that hold a block (2: or more), plus 3 when a transfer does -> what `states` shows."""


UNWRAPPED = 256
"""Blocks that are put on the stack of free ones at once."""


class OutOfBlocks(Exception):
    """More blocks were asked for than are free; a bug of the caller, which must look at `free_blocks` first."""


class BlockPool:
    """Reference counts of `num_blocks` blocks, the null block included.

    `evict(count)` must make at least so many cached blocks free, by drop_index. `on_cached(block)` follows every last
    drop of a block that the index keeps.
    """

    __slots__ = (
        "_cached",
        "_debt",
        "_end",
        "_evict",
        "_free",
        "_fresh",
        "_indexed",
        "_on_cached",
        "_pins",
        "_retired",
        "_sequences",
        "_transfers",
        "cached_blocks",
        "empty_blocks",
        "num_blocks",
        "usable_blocks",
    )

    def __init__(
        self,
        num_blocks: int,
        evict: Callable[[int], None],
        on_cached: Callable[[int], None] = lambda block: None,
    ) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks: {num_blocks} leaves no block beside the null block; give at least 2")
        self.num_blocks = num_blocks
        self._evict = evict
        self._on_cached = on_cached
        self._sequences = [0] * num_blocks
        self._transfers: dict[int, int] = {}  # of the few blocks that are copied
        self._pins: dict[int, int] = {}
        self._indexed = bytearray(num_blocks)
        self._cached = bytearray(num_blocks)
        self._free: list[int] = []  # a stack
        self._fresh = 1  # this block and those behind it were never given out: they lie below the stack
        self.cached_blocks = 0
        """Blocks that only the index holds."""
        self.empty_blocks = num_blocks - 1
        """Blocks that hold nothing: taking them costs no cached one."""
        self._end = num_blocks  # so far, but for what is retired
        self._retired: list[int] = []  # those that were never given out from `_end` on, the last ones first
        self._debt = 0  # to be retired as they come back
        self.usable_blocks = num_blocks - 1
        """All blocks but the null block and what is retired, or will be once it is free."""

    @property
    def retired_blocks(self) -> int:
        """Blocks that are given to nobody any more, those included that somebody still holds."""
        return len(self._retired) + self._debt

    @property
    def debt(self) -> int:
        """Blocks that somebody holds and that will be retired when they come back."""
        return self._debt

    def retire(self, count: int) -> None:
        """Takes `count` blocks out of use: unused ones, first those that were never given out, from the pool's end on; then cached ones,
        then whichever come back next."""
        self._debt += count
        self.usable_blocks -= count
        self._pay_debt()

    def restore(self, count: int) -> int:
        """Puts up to `count` retired blocks back to use; returns how many."""
        forgiven = min(count, self._debt)
        self._debt -= forgiven
        back = min(count - forgiven, len(self._retired))
        below: list[int] = []
        for _ in range(back):
            block = self._retired.pop()
            if block == self._end:
                self._end += 1
            else:
                below.append(block)
        self._free[:0] = reversed(below)
        self.empty_blocks += back
        self.usable_blocks += forgiven + back
        return forgiven + back

    def _unwrap(self, count: int) -> None:
        """Puts never-used blocks on the bottom of the stack until `count` are there, or all: a pool is large and used slowly."""
        lack = count - len(self._free)
        if lack > 0 and self._fresh < self._end:
            end = min(self._end, self._fresh + max(lack, UNWRAPPED))
            self._free[:0] = range(end - 1, self._fresh - 1, -1)
            self._fresh = end

    def _pay_debt(self) -> None:
        cached = min(self._debt - self.empty_blocks, self.cached_blocks)
        if cached > 0:
            self._evict(cached)
        last = min(self._debt, self._end - self._fresh)
        self._retired += range(self._end - 1, self._end - 1 - last, -1)
        self._end -= last
        count = min(self._debt - last, len(self._free))
        if count:
            self._retired += self._free[:count]
            del self._free[:count]
        self.empty_blocks -= last + count
        self._debt -= last + count

    @property
    def free_blocks(self) -> int:
        """Blocks that no sequence, transfer or pin holds; cached ones count."""
        return self.empty_blocks + self.cached_blocks

    @property
    def pinned_blocks(self) -> int:
        """Blocks under at least one pin."""
        return len(self._pins)

    def take(self, count: int) -> list[int]:
        """`count` blocks, each held by one sequence. Evicts cached ones when needed. Raises OutOfBlocks."""
        if count <= 0:
            return []
        free = self._free
        if count > len(free):
            if count > self.free_blocks:
                raise OutOfBlocks(f"{count} blocks asked for, {self.free_blocks} free")
            self._unwrap(count)
            if count > len(free):
                self._evict(count - len(free))
        taken = free[: -count - 1 : -1]
        del free[-count:]
        self.empty_blocks -= count
        sequences = self._sequences
        for block in taken:
            sequences[block] = 1
        return taken

    def share(self, block: int) -> None:
        """One more sequence holds `block`, which someone holds already. Raises ValueError when nobody does."""
        self.share_all((block,))

    def share_all(self, blocks: Iterable[int]) -> None:
        """One more sequence holds each of `blocks`. Raises ValueError at the first that nobody holds."""
        sequences, cached = self._sequences, self._cached
        for block in blocks:
            if cached[block]:
                cached[block] = 0
                self.cached_blocks -= 1
            elif not self._is_held(block):
                raise ValueError(f"block {block} is free and cannot be shared")
            sequences[block] += 1

    def fork(self, table: list[int], shared: int, own: int) -> list[int]:
        """A second table with the first `shared` blocks of `table` and `own` blocks of its own behind them.

        The copy-on-write of n > 1 and of beams: full blocks are shared, and whoever computes copies the partial one
        before it writes there. Raises OutOfBlocks, and then nothing has changed.
        """
        behind = self.take(own)
        self.share_all(table[:shared])
        return table[:shared] + behind

    def drop(self, block: int) -> bool:
        """A sequence's hold ends. True when no holder but the index is left. Raises ValueError on a double free."""
        return self.drop_all((block,)) == 1

    def drop_all(self, blocks: Iterable[int]) -> int:
        """A sequence's holds end, in this order; how many blocks came back. Raises ValueError on a double free."""
        sequences, transfers, pins, back = self._sequences, self._transfers, self._pins, 0
        indexed, cached, free = self._indexed, self._cached, self._free
        for block in blocks:
            held = sequences[block] - 1
            if held < 0:
                raise ValueError(f"block {block} has no sequence holder to drop")
            sequences[block] = held
            if held or block in transfers or block in pins:
                continue
            back += 1
            if self._debt:
                self._let_go(block)
            elif indexed[block]:  # _let_go, in line
                cached[block] = 1
                self.cached_blocks += 1
                self._on_cached(block)
            else:
                free.append(block)
                self.empty_blocks += 1
        return back

    def hold_transfer(self, block: int) -> None:
        """A transfer begins to read or write `block`, which someone holds already."""
        if self._uncache(block) or self._is_held(block):
            self._transfers[block] = self._transfers.get(block, 0) + 1
            return
        raise ValueError(f"block {block} is free and cannot be transferred")

    def drop_transfer(self, block: int) -> bool:
        """A transfer's hold ends. Raises ValueError on a double free."""
        held = self._transfers.get(block, 0)
        if not held:
            raise ValueError(f"block {block} has no transfer holder to drop")
        if held > 1:
            self._transfers[block] = held - 1
        else:
            del self._transfers[block]
        return self._settle(block)

    def hold_pin(self, block: int) -> None:
        """A pin holds `block`, which the index holds already. Raises ValueError when it does not."""
        if not self._indexed[block]:
            raise ValueError(f"block {block} is not indexed and cannot be pinned")
        self._uncache(block)
        self._pins[block] = self._pins.get(block, 0) + 1

    def drop_pin(self, block: int) -> bool:
        """A pin's hold ends. Raises KeyError on a double free."""
        self._pins[block] -= 1
        if not self._pins[block]:
            del self._pins[block]
        return self._settle(block)

    def is_pinned(self, block: int) -> bool:
        """At least one pin holds it."""
        return block in self._pins

    def hold_index(self, block: int) -> None:
        """The index holds `block` from now on, which someone else holds already."""
        self.hold_index_all((block,))

    def hold_index_all(self, blocks: Iterable[int]) -> None:
        """The index holds each of `blocks` from now on. Raises ValueError at the first that it holds, or that nobody does."""
        indexed, sequences = self._indexed, self._sequences
        for block in blocks:
            if indexed[block]:
                raise ValueError(f"block {block} is indexed already")
            if not (sequences[block] or self._is_held(block)):
                raise ValueError(f"block {block} is free and holds nothing to index")
            indexed[block] = 1

    def adopt(self, blocks: list[int]) -> None:
        """Free blocks become cached: a restarted scheduler learns from a worker's Hello what they hold.

        Raises ValueError when one of them is not free. `on_cached` is not called.
        """
        if not blocks:
            return
        self._unwrap(self.num_blocks)
        wanted = set(blocks)
        free = [block for block in self._free if block not in wanted]
        if len(self._free) - len(free) != len(blocks):
            raise ValueError("blocks: one of them is not free, or is given twice")
        self._free = free
        self.empty_blocks -= len(blocks)
        for block in blocks:
            self._indexed[block] = self._cached[block] = 1
        self.cached_blocks += len(blocks)

    def drop_index(self, block: int) -> bool:
        """The index lets go of `block`; True when that makes it free."""
        if not self._indexed[block]:
            raise ValueError(f"block {block} is not indexed")
        self._indexed[block] = 0
        if not self._uncache(block):
            return False
        self._free.append(block)
        self.empty_blocks += 1
        return True

    def is_cached(self, block: int) -> bool:
        """Only the index holds it."""
        return bool(self._cached[block])

    def first_cached(self) -> int:
        """Any block that only the index holds; -1 when there is none."""
        return self._cached.find(1)

    def count_cached(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` only the index holds."""
        return sum(map(self._cached.__getitem__, blocks))

    def sequences_of(self, block: int) -> int:
        """How many sequences hold it."""
        return self._sequences[block]

    def is_exclusive(self, block: int) -> bool:
        """Exactly one sequence holds it, and no transfer or pin does: ending that hold makes it free."""
        return self._sequences[block] == 1 and block not in self._transfers and block not in self._pins

    def is_held_once(self, block: int) -> bool:
        """Exactly one sequence holds it, and no pin does: it is free when that hold and the transfers' have ended."""
        return self._sequences[block] == 1 and block not in self._pins

    def _is_held(self, block: int) -> bool:
        return self._sequences[block] > 0 or block in self._transfers or block in self._pins

    def _uncache(self, block: int) -> bool:
        """Someone takes a hold of it, or the index lets go: whether it was cached until now."""
        if not self._cached[block]:
            return False
        self._cached[block] = 0
        self.cached_blocks -= 1
        return True

    def is_leaving(self, block: int) -> bool:
        """Only transfers hold it: it is free when they end."""
        return not self._sequences[block] and block in self._transfers

    def _settle(self, block: int) -> bool:
        if self._is_held(block):
            return False
        self._let_go(block)
        return True

    def _let_go(self, block: int) -> None:
        """Its last holder but the index is gone."""
        if self._indexed[block]:
            self._cached[block] = 1
            self.cached_blocks += 1
            self._on_cached(block)
        else:
            self._free.append(block)
            self.empty_blocks += 1
        if self._debt:
            self._pay_debt()

    def states(self) -> bytes:
        """One byte per usable block: 0 free, 1 cached or pinned, 2 held by a sequence, 3 by several, 4 by a transfer."""
        sequences = bytes(map(min, self._sequences, repeat(2)))
        held = bytearray(sequences)
        for block in self._transfers:
            held[block] += 3
        # what is indexed and held by neither is cached or pinned
        return bytes(map(max, held[1:].translate(_STATE_OF), self._indexed[1:]))

    def check_integrity(self) -> list[str]:
        """Every block is in exactly one state and no count is off; returns what is wrong, in words."""
        wrong: list[str] = []
        free = {*self._free, *range(self._fresh, self._end)}
        if len(free) != self.empty_blocks:
            wrong.append("a block is twice in the free list")
        if 0 in free or self._sequences[0] or 0 in self._transfers or self._indexed[0] or 0 in self._pins:
            wrong.append("the null block is in use")
        if self.cached_blocks != sum(self._cached):
            wrong.append("the count of cached blocks is off")
        if self.usable_blocks != self.num_blocks - 1 - len(self._retired) - self._debt:
            wrong.append("the count of usable blocks is off")
        retired = set(self._retired)
        if self._debt and self.free_blocks:
            wrong.append("blocks are free that should be retired")
        for block in range(1, self.num_blocks):
            held = self._is_held(block)
            states = (block in free) + self._cached[block] + (block in retired) + held
            if states != 1:
                wrong.append(f"block {block} is in {states} states")
            if self._cached[block] != (self._indexed[block] and not held):
                wrong.append(f"block {block}: cached and its holders disagree")
            if self._sequences[block] < 0 or self._transfers.get(block, 1) < 1 or self._pins.get(block, 1) < 1:
                wrong.append(f"block {block} has a negative count")
            if block in self._pins and not self._indexed[block]:
                wrong.append(f"block {block} is pinned and not indexed")
        return wrong

    def suspects(self, sequence_blocks: Iterable[list[int]], transfer_blocks: Iterable[list[int]]) -> list[int]:
        """Blocks of which `leaked` finds something wrong. Costs O(blocks): for the words of a failed audit."""
        sequences, transfers = Counter[int](), Counter[int]()
        for table in sequence_blocks:
            sequences.update(table)
        for table in transfer_blocks:
            transfers.update(table)
        gone = {*self._free, *self._retired, *range(self._fresh, self._end)}
        return [
            block
            for block in range(1, self.num_blocks)
            if (self._sequences[block], self._transfers.get(block, 0)) != (sequences[block], transfers[block])
            or (block in gone) + self._cached[block] + self._is_held(block) != 1
        ]

    def leaked(self, sequence_blocks: Iterable[list[int]], transfer_blocks: Iterable[list[int]]) -> int:
        """Blocks whose holders differ from the given tables of all sequences and transfers; must be 0.

        Costs O(blocks held), so that a live audit of a large pool is cheap.
        """
        sequences = Counter[int]()
        transfers = Counter[int]()
        for table in sequence_blocks:
            sequences.update(table)
        for table in transfer_blocks:
            transfers.update(table)
        wrong = sum(self._sequences[block] != count for block, count in sequences.items())
        wrong += sum(self._transfers.get(block, 0) != count for block, count in transfers.items())
        held = len(sequences.keys() | transfers.keys() | self._pins.keys())
        return wrong + abs(self.num_blocks - 1 - len(self._retired) - self.free_blocks - held)
