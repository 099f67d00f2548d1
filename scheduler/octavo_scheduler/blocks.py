"""The blocks of one worker's pool and who holds each of them.

A block has holders: sequences, transfers, the index. It is free when it has none; one that only the index holds is
cached, and counts as free because eviction takes it at once. Block 0 is the null block and is never allocated.

Eviction is least recently used. A sequence gives its blocks back from the tail to the head, so a chain's leaf is
always older than its parent: least recently used is leaf first without a tree (SGLang's RadixCache order).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from itertools import repeat

_STATE_OF = bytes((0, 2, 3, 4, 4, 4)) + bytes(250)
"""Sequences that hold a block (2: or more), plus 3 when a transfer does -> what `states` shows."""


class OutOfBlocks(Exception):
    """More blocks were asked for than are free; a bug of the caller, which must look at `free_blocks` first."""


class BlockPool:
    """Reference counts of `num_blocks` blocks, the null block included. `on_evict(block)` is called before reuse."""

    __slots__ = (
        "_cached",
        "_debt",
        "_free",
        "_indexed",
        "_on_evict",
        "_retired",
        "_sequences",
        "_transfers",
        "num_blocks",
    )

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks: {num_blocks} leaves no block beside the null block; give at least 2")
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._sequences = [0] * num_blocks
        self._transfers = [0] * num_blocks
        self._indexed = bytearray(num_blocks)
        self._free = list(range(num_blocks - 1, 0, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._retired: list[int] = []
        self._debt = 0  # to be retired as they come back

    @property
    def usable_blocks(self) -> int:
        """All blocks but the null block and what is retired, or will be once it is free."""
        return self.num_blocks - 1 - self.retired_blocks

    @property
    def retired_blocks(self) -> int:
        """Blocks that are given to nobody any more, those included that somebody still holds."""
        return len(self._retired) + self._debt

    @property
    def debt(self) -> int:
        """Blocks that somebody holds and that will be retired when they come back."""
        return self._debt

    def retire(self, count: int) -> None:
        """Takes `count` blocks out of use: unused ones, then cached ones, then whichever come back next."""
        self._debt += count
        self._pay_debt()

    def restore(self, count: int) -> int:
        """Puts up to `count` retired blocks back to use; returns how many."""
        forgiven = min(count, self._debt)
        self._debt -= forgiven
        back = min(count - forgiven, len(self._retired))
        for _ in range(back):
            self._free.append(self._retired.pop())
        return forgiven + back

    def _pay_debt(self) -> None:
        while self._debt and (self._free or self._cached):
            block = self._free.pop() if self._free else self._evict()
            self._retired.append(block)
            self._debt -= 1

    def _evict(self) -> int:
        """The least recently used cached block, free of the index."""
        block, _none = self._cached.popitem(last=False)
        self._indexed[block] = 0
        self._on_evict(block)
        return block

    @property
    def free_blocks(self) -> int:
        """Blocks that no sequence and no transfer holds; cached ones count."""
        return len(self._free) + len(self._cached)

    @property
    def cached_blocks(self) -> int:
        """Blocks that only the index holds."""
        return len(self._cached)

    def take(self, count: int) -> list[int]:
        """`count` blocks, each held by one sequence. Evicts cached ones when needed. Raises OutOfBlocks."""
        if count > self.free_blocks:
            raise OutOfBlocks(f"{count} blocks asked for, {self.free_blocks} free")
        taken: list[int] = []
        for _ in range(count):
            block = self._free.pop() if self._free else self._evict()
            self._sequences[block] = 1
            taken.append(block)
        return taken

    def share(self, block: int) -> None:
        """One more sequence holds `block`, which someone holds already."""
        if not (self._sequences[block] or self._transfers[block] or self._indexed[block]):
            raise ValueError(f"block {block} is free and cannot be shared")
        self._sequences[block] += 1
        self._cached.pop(block, None)

    def drop(self, block: int) -> bool:
        """A sequence's hold ends. True when neither sequence nor transfer is left. Raises ValueError on a double free."""
        if self._sequences[block] <= 0:
            raise ValueError(f"block {block} has no sequence holder to drop")
        self._sequences[block] -= 1
        return self._settle(block)

    def hold_transfer(self, block: int) -> None:
        """A transfer begins to read or write `block`, which someone holds already."""
        if not (self._sequences[block] or self._transfers[block] or self._indexed[block]):
            raise ValueError(f"block {block} is free and cannot be transferred")
        self._transfers[block] += 1
        self._cached.pop(block, None)

    def drop_transfer(self, block: int) -> bool:
        """A transfer's hold ends. Raises ValueError on a double free."""
        if self._transfers[block] <= 0:
            raise ValueError(f"block {block} has no transfer holder to drop")
        self._transfers[block] -= 1
        return self._settle(block)

    def hold_index(self, block: int) -> None:
        """The index holds `block` from now on; a free block may be adopted (a restarted scheduler's Hello)."""
        if self._indexed[block]:
            raise ValueError(f"block {block} is indexed already")
        self._indexed[block] = 1
        if not (self._sequences[block] or self._transfers[block]):
            self._free.remove(block)
            self._cached[block] = None

    def drop_index(self, block: int) -> None:
        """The index lets go of `block`."""
        if not self._indexed[block]:
            raise ValueError(f"block {block} is not indexed")
        self._indexed[block] = 0
        if self._cached.pop(block, 0) is None:
            self._free.append(block)

    def is_cached(self, block: int) -> bool:
        """Only the index holds it."""
        return block in self._cached

    def is_exclusive(self, block: int) -> bool:
        """Exactly one sequence holds it and no transfer does: ending that hold makes it free."""
        return self._sequences[block] == 1 and not self._transfers[block]

    def _settle(self, block: int) -> bool:
        if self._sequences[block] or self._transfers[block]:
            return False
        if self._indexed[block]:
            self._cached[block] = None
        else:
            self._free.append(block)
        if self._debt:
            self._pay_debt()
        return True

    def states(self) -> bytes:
        """One byte per usable block: 0 free, 1 cached, 2 held by a sequence, 3 by several, 4 by a transfer."""
        sequences = bytes(map(min, self._sequences, repeat(2)))
        held = bytes(3 * moving + count for moving, count in zip(map(bool, self._transfers), sequences, strict=True))
        marks = bytearray(held[1:].translate(_STATE_OF))
        for block in self._cached:
            marks[block - 1] = 1
        return bytes(marks)

    def check_integrity(self) -> list[str]:
        """Every block is in exactly one state and no count is off; returns what is wrong, in words."""
        wrong: list[str] = []
        free = set(self._free)
        if len(free) != len(self._free):
            wrong.append("a block is twice in the free list")
        if 0 in free or self._sequences[0] or self._transfers[0] or self._indexed[0]:
            wrong.append("the null block is in use")
        retired = set(self._retired)
        if self._debt and (self._free or self._cached):
            wrong.append("blocks are free that should be retired")
        for block in range(1, self.num_blocks):
            held = self._sequences[block] > 0 or self._transfers[block] > 0
            states = (block in free) + (block in self._cached) + (block in retired) + held
            if states != 1:
                wrong.append(f"block {block} is in {states} states")
            if (block in self._cached) != (bool(self._indexed[block]) and not held):
                wrong.append(f"block {block}: cached and its holders disagree")
            if self._sequences[block] < 0 or self._transfers[block] < 0:
                wrong.append(f"block {block} has a negative count")
        return wrong

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
        wrong += sum(self._transfers[block] != count for block, count in transfers.items())
        held = len(sequences.keys() | transfers.keys())
        return wrong + abs(self.num_blocks - 1 - len(self._retired) - self.free_blocks - held)
