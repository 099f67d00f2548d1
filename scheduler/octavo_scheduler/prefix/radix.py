"""The prefix index of one worker: a radix tree over its pool's blocks (after RadixAttention: Zheng et al., 2023).

Keys are chained (`octavo.keys`), so a key names a whole beginning: one map from key to block finds any place in the tree,
and whoever has a block has all before it. The tree says what hangs below what: live sequences and the cache share its
blocks by the pool's reference counts, and only a leaf that nobody else holds is evicted, the one of least value first
(eviction.py). A block enters only when it lies wholly below `computed_len` and its parent is in; two sequences that
compute the same key at once leave one block in the index and the other private.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo_scheduler.blocks import BlockPool, OutOfBlocks
from octavo_scheduler.prefix.eviction import Victims, add_use, keep_score, use_at
from octavo_scheduler.prefix.node import Node, check_tree
from octavo_scheduler.prefix.pins import Pin, Pins

SUNK = -1e9
"""Heat below that of any use: the next use replaces it."""


class PrefixIndex:
    """Owns the tree and, through the pool, the index's hold on each block. `on_forget(block)` follows an eviction.

    `block_cost_us(depth)` predicts what computing block `depth` of a chain again would take, `block_bytes` is its size.
    """

    __slots__ = ("_block_bytes", "_block_cost_us", "_kept", "_key_of", "_node_of", "_on_forget", "_pins", "_root",
                 "_victims", "block_of", "cut_blocks", "known_heads", "nodes", "pool")  # fmt: skip

    def __init__(
        self,
        num_blocks: int,
        on_forget: Callable[[int], None] = lambda block: None,
        block_cost_us: Callable[[int], float] = lambda depth: 1.0,
        block_bytes: int = 1,
    ) -> None:
        self.pool = BlockPool(num_blocks, self._evict, self._cached)
        self._on_forget = on_forget
        self._block_cost_us = block_cost_us
        self._block_bytes = block_bytes
        self._root = Node(None, 0, [], 0.0)
        self._node_of: list[Node | None] = [None] * num_blocks
        self._key_of: dict[int, bytes] = {}
        self._victims = Victims(self._evictable)
        self._pins = Pins()
        self._kept: dict[Node, None] = {}  # nodes whose priority ends
        self.block_of: dict[bytes, int] = {}  # others only look keys up in it
        self.known_heads: set[bytes] = set()
        """Keys of all heads of chains that were ever here; workers of a fleet share one (Fleet.heads)."""
        self.nodes = 0
        self.cut_blocks = 0
        """Blocks in use that left the index because one before them had to go."""

    def __len__(self) -> int:
        return len(self.block_of)

    def __contains__(self, key: bytes) -> bool:
        return key in self.block_of

    # -- what is there -------------------------------------------------------------------------------------------------

    def match_len(self, keys: Sequence[bytes], limit: int) -> int:
        """How many leading keys are indexed, `limit` at most. O(log n): who has a key has all before it."""
        block_of = self.block_of
        low, high = 0, min(limit, len(keys))
        if not high or keys[0] not in block_of:
            return 0
        if keys[high - 1] in block_of:
            return high
        while high - low > 1:  # keys[low] is in, keys[high - 1] is not
            middle = (low + high) // 2
            if keys[middle] in block_of:
                low = middle
            else:
                high = middle
        return low + 1

    def match(self, keys: Sequence[bytes], limit: int) -> list[int]:
        """Blocks of the longest indexed run of `keys`, `limit` at most. Takes no reference: share() in this event."""
        count = self.match_len(keys, limit)
        if not count:
            return []
        node = self._node_of[self.block_of[keys[count - 1]]]
        parts: list[list[int]] = []
        while node is not None and node is not self._root:
            parts.append(node.blocks if node.end <= count else node.blocks[: count - node.depth])
            node = node.parent
        parts.reverse()
        return [block for part in parts for block in part]

    def key_of(self, block: int) -> bytes | None:
        """The key under which `block` is indexed."""
        return self._key_of.get(block)

    def indexed(self, blocks: Sequence[int]) -> list[int]:
        """Those of `blocks` that are."""
        key_of = self._key_of
        return [block for block in blocks if block in key_of]

    # -- uses ----------------------------------------------------------------------------------------------------------

    def hit(self, blocks: Sequence[int], now_us: int) -> None:
        """An admission uses `blocks`, which `match` gave in this event."""
        if not blocks:
            return
        node = self._node(blocks[-1])
        if node.end > len(blocks):
            node = self._split(node, len(blocks) - node.depth)
        while node is not self._root:
            node.heat = add_use(node.heat, now_us)
            node.hits += 1
            node = self._above(node)

    def sink(self, keys: Sequence[bytes]) -> None:
        """The indexed run of `keys`, as far as nothing else hangs on it, is the first to be evicted, until its next use."""
        blocks = self.match(keys, len(keys))
        if not blocks:
            return
        node = self._node(blocks[-1])
        if node.end > len(blocks):
            return  # something hangs on its end
        while node is not self._root and len(node.children) <= 1:
            node.heat = SUNK
            self._offer(node)
            node = self._above(node)

    def rest(self, table: Sequence[int], now_us: int) -> None:
        """A sequence is about to drop `table`: it was in use until now, which is no new use."""
        for block in reversed(table):
            node = self._node_of[block]
            if node is not None:
                heat = use_at(now_us)
                while node is not self._root and node.heat < heat:
                    node.heat = heat
                    node = self._above(node)
                return

    # -- entries -------------------------------------------------------------------------------------------------------

    def add(self, key: bytes, block: int, parent: bytes | None, now_us: int) -> bool:
        """Indexes a computed full block below `parent` (None: the chain's head).

        False when it stays private: the key or the block is indexed already, or the parent is not.
        """
        if key in self.block_of or self._node_of[block] is not None:
            return False
        if parent is None:
            above = self._root
        else:
            last = self.block_of.get(parent)
            if last is None:
                return False
            above = self._node(last)
            if above.blocks[-1] != last:
                above = self._split(above, above.blocks.index(last) + 1)
        self.pool.hold_index_all((block,))
        self._append(above, key, block, use_at(now_us))
        return True

    def add_run(self, keys: Sequence[bytes], blocks: Sequence[int], parent: bytes | None, now_us: int) -> bool:
        """`add` of one block after another, each below the one before it.

        False, and nothing has changed, unless all of them would enter at the end of one run: add them one by one then.
        """
        block_of, node_of, key_of = self.block_of, self._node_of, self._key_of
        if parent is None:
            above = self._root
        else:
            last = block_of.get(parent)
            if last is None:
                return False
            above = self._node(last)
            if above.blocks[-1] != last:
                return False
        if not block_of.keys().isdisjoint(keys) or any(map(node_of.__getitem__, blocks)):
            return False
        self.pool.hold_index_all(blocks)
        node = self._append(above, keys[0], blocks[0], use_at(now_us))
        node.blocks += blocks[1:]
        block_of.update(zip(keys, blocks, strict=True))
        key_of.update(zip(blocks, keys, strict=True))
        for block in blocks:
            node_of[block] = node
        return True

    def adopt(self, entries: Sequence[tuple[int, bytes, int]], now_us: int) -> int:
        """Indexes free blocks that a worker still holds: (block, key, place of its parent in `entries`, -1: a head).

        Entries of a broken chain stay free. Returns how many were indexed.
        """
        below: dict[int, list[int]] = {}
        for at, (_block, _key, parent) in enumerate(entries):
            below.setdefault(parent, []).append(at)
        heat = use_at(now_us)
        order = below.get(-1, [])[::-1]
        found: list[int] = []
        seen: set[int] = set()
        while order:
            at = order.pop()
            block, key, parent = entries[at]
            usable = 0 < block < self.pool.num_blocks and block not in seen and key not in self.block_of
            if not usable or self._node_of[block] is not None:
                continue
            seen.add(block)
            above = self._node(entries[parent][0]) if parent >= 0 else self._root
            if above is not self._root and above.blocks[-1] != entries[parent][0]:
                above = self._split(above, above.blocks.index(entries[parent][0]) + 1)
            self._append(above, key, block, heat)
            found.append(block)
            order.extend(reversed(below.get(at, ())))
        self.pool.adopt(found)
        for block in found:
            self._cached(block)
        return len(found)

    def _append(self, above: Node, key: bytes, block: int, heat: float) -> Node:
        """Below the last block of `above`: its run goes on unless it has a history of its own. Returns the block's node."""
        if above is self._root or above.children or above.hits or above.priority:
            node = Node(above, above.end, [block], heat)
            above.children[key] = node
            if above is self._root:
                self.known_heads.add(key)
            self.nodes += 1
        else:
            node = above
            node.blocks.append(block)
            node.heat = max(node.heat, heat)
        self.block_of[key] = block
        self._key_of[block] = key
        self._node_of[block] = node
        return node

    # -- pins and priorities -------------------------------------------------------------------------------------------

    def pin(self, keys: Sequence[bytes], until_us: int = 0, priority: int = 0) -> Pin:
        """Keeps the indexed run of `keys` until `unpin`, or `until_us` (0: no end). Its blocks are not free meanwhile.

        `pin.blocks` are the ones that it holds, fewer than `keys` when not all are indexed. A pin that leaves no room
        for a request alone on the worker yields (`yield_pins`), the least `priority` first.
        """
        blocks = self.match(keys, len(keys))
        for block in blocks:
            self.pool.hold_pin(block)
        return self._pins.add(blocks, priority, until_us)

    def unpin(self, pin: Pin) -> int:
        """Ends a pin, the tail first; how many blocks came back. 0 when it has ended before."""
        return sum(self.pool.drop_pin(block) for block in reversed(self._pins.end(pin)))

    def yield_pins(self, blocks: int) -> int:
        """Ends the weakest pins until `blocks` more are free or none is left; how many blocks came back."""
        back = 0
        while back < blocks and (pin := self._pins.weakest()) is not None:
            back += self.unpin(pin)
        return back

    def prioritize(self, keys: Sequence[bytes], priority: int, until_us: int = 0) -> int:
        """Each step of `priority` doubles the value of the indexed run of `keys`, until `until_us` (0: for good).

        Unlike pinned blocks these stay free for whoever needs them more. Returns how many blocks it concerns.
        """
        blocks = self.match(keys, len(keys))
        if not blocks:
            return 0
        node = self._node(blocks[-1])
        if node.end > len(blocks):
            node = self._split(node, len(blocks) - node.depth)
        while node is not self._root:
            node.priority, node.keep_until_us = priority, until_us
            if until_us and priority:
                self._kept[node] = None
            self._offer(node)
            node = self._above(node)
        return len(blocks)

    def heads(self) -> list[bytes]:
        """Keys of the first block of every chain."""
        return list(self._root.children)

    def drop(self, key: bytes) -> list[tuple[int, bytes]]:
        """Takes the block of `key` and all below it out of the index, whoever holds them; ends the pins on them.

        Returns (block, key) of each; empty when the key is not indexed. Holders keep their blocks, which stay private.
        """
        block = self.block_of.get(key)
        if block is None:
            return []
        top, at, below = self._subtree(block)
        dropped = [(held, self._key(held)) for node in below for held in node.blocks]
        dropped += [(held, self._key(held)) for held in top.blocks[at:]]
        gone = {held for held, _key in dropped}
        for pin in [pin for pin in self._pins if not gone.isdisjoint(pin.blocks)]:
            self.unpin(pin)
        if key not in self.block_of:  # a pool that shrinks has waited for what was pinned
            return dropped
        top, at, below = self._subtree(block)
        for node in below:
            node.children = {}
            self._forget(node, 0)
            self.nodes -= 1
        top.children = {}
        self._trim(top, at)
        return dropped

    def _subtree(self, block: int) -> tuple[Node, int, list[Node]]:
        """The node of a block, its place there, and the nodes below."""
        top = self._node(block)
        below, waiting = [], list(top.children.values())
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children.values())
            below.append(node)
        return top, top.blocks.index(block), below

    def expire(self, now_us: int) -> int:
        """Ends pins and priorities whose time is up; returns how many pins."""
        due = self._pins.due(now_us)
        for pin in due:
            self.unpin(pin)
        for node in [node for node in self._kept if node.keep_until_us <= now_us]:
            del self._kept[node]
            if node.keep_until_us and node.blocks:
                node.priority = node.keep_until_us = 0
                self._offer(node)
        return len(due)

    @property
    def pins(self) -> int:
        """Live pins."""
        return len(self._pins)

    # -- eviction ------------------------------------------------------------------------------------------------------

    def _cached(self, block: int) -> None:
        """The pool's last holder but this index has let go of `block`."""
        node = self._node_of[block]
        if node is not None and node.blocks[-1] == block and not node.children:
            self._victims.tidy(self.nodes)
            self._victims.offer(node, self._score(node))

    def _offer(self, node: Node) -> None:
        if self._evictable(node):
            self._victims.offer(node, self._score(node))

    def _score(self, node: Node) -> float:
        return keep_score(node.heat, self._block_cost_us(node.end - 1), self._block_bytes, node.priority)

    def _evictable(self, node: Node) -> bool:
        return bool(node.blocks) and not node.children and self.pool.is_cached(node.blocks[-1])

    def _evict(self, count: int) -> None:
        """Makes at least `count` cached blocks free."""
        pool = self.pool
        while count > 0:
            node = self._victims.pop()
            if node is None:
                count -= self._cut()
                continue
            blocks = node.blocks
            keep = len(blocks)
            while keep and count and pool.is_cached(blocks[keep - 1]):
                keep -= 1
                count -= 1
            self._trim(node, keep)

    def _cut(self) -> int:
        """Takes a cached block out from before blocks that are in use, which leave the index with it: they stay private.

        It comes to this only when no leaf may go: a sequence computed a prefix that was indexed already, went on below
        it, and the one that had indexed it is gone. Returns how many blocks became free. Raises OutOfBlocks when nothing
        is cached.
        """
        block = self.pool.first_cached()
        if block < 0:
            raise OutOfBlocks("nothing is cached that could make room")
        top = self._node(block)
        at = max(place for place, held in enumerate(top.blocks) if self.pool.is_cached(held))
        free_before = self.pool.empty_blocks
        below = list(top.children.values())
        while below:
            node = below.pop()
            below.extend(node.children.values())
            node.children = {}
            self.cut_blocks += sum(not self.pool.is_cached(held) for held in node.blocks)
            self._forget(node, 0)
            self.nodes -= 1
        top.children = {}
        self.cut_blocks += sum(not self.pool.is_cached(held) for held in top.blocks[at:])
        self._trim(top, at)
        return self.pool.empty_blocks - free_before

    def _trim(self, node: Node, keep: int) -> None:
        """Drops all but the first `keep` blocks of a leaf; the one before it may be a leaf then."""
        above, first = node.parent, self._key(node.blocks[0])
        self._forget(node, keep)
        if keep:
            self._offer(node)
        elif above is not None:
            del above.children[first]
            self.nodes -= 1
            self._offer(above)

    def _forget(self, node: Node, keep: int) -> None:
        """Drops all but the first `keep` blocks of `node` from the maps, tail first."""
        for at in range(len(node.blocks) - 1, keep - 1, -1):
            block = node.blocks[at]
            del self.block_of[self._key(block)]
            self._node_of[block] = None
            del self._key_of[block]
            if self.pool.drop_index(block):
                self._on_forget(block)
        del node.blocks[keep:]

    # -- the tree ------------------------------------------------------------------------------------------------------

    def _node(self, block: int) -> Node:
        node = self._node_of[block]
        if node is None:
            raise KeyError(f"block {block} is not indexed")
        return node

    def _key(self, block: int) -> bytes:
        key = self._key_of.get(block)
        if key is None:
            raise KeyError(f"block {block} is not indexed")
        return key

    def _above(self, node: Node) -> Node:
        if node.parent is None:
            raise KeyError("the root has nothing above it")
        return node.parent

    def _split(self, node: Node, at: int) -> Node:
        """Makes two nodes of one before its block `at`; returns the upper one. Each keeps the history of both."""
        above = self._above(node)
        upper = Node(above, node.depth, node.blocks[:at], node.heat)
        upper.hits, upper.priority, upper.keep_until_us = node.hits, node.priority, node.keep_until_us
        if node in self._kept:
            self._kept[upper] = None
        above.children[self._key(upper.blocks[0])] = upper
        del node.blocks[:at]
        node.parent, node.depth = upper, node.depth + at
        upper.children[self._key(node.blocks[0])] = node
        self.nodes += 1
        for block in upper.blocks:
            self._node_of[block] = upper
        return upper

    def check_integrity(self) -> list[str]:
        """The pool's check, and tree and maps agree; returns what is wrong, in words."""
        pinned = {block for pin in self._pins for block in pin.blocks}
        keys = self._key_of
        wrong = self.pool.check_integrity() + check_tree(self._root, keys, self._node_of, self.nodes)
        if {key: block for block, key in keys.items()} != self.block_of:
            wrong.append("the index's two maps differ")
        if len(pinned) != self.pool.pinned_blocks:
            wrong.append(f"{len(pinned)} blocks are pinned, {self.pool.pinned_blocks} are held for it")
        return wrong
