"""One node of the radix tree: a run of blocks that nobody has left or joined in between."""

from __future__ import annotations


class Node:
    """The first of `blocks` is block `depth` of its chain; `children` are found by the key of their first block.

    `heat` and `offer` are eviction.py's.
    """

    __slots__ = ("blocks", "children", "depth", "heat", "hits", "keep_until_us", "offer", "parent", "priority")

    def __init__(self, parent: Node | None, depth: int, blocks: list[int], heat: float) -> None:
        self.parent = parent
        self.depth = depth
        self.blocks = blocks
        self.children: dict[bytes, Node] = {}
        self.heat = heat
        self.hits = 0
        """Admissions that found it."""
        self.priority = 0
        self.keep_until_us = 0
        """Until then `priority` holds; 0: for good."""
        self.offer = 0

    @property
    def end(self) -> int:
        """Blocks of the chain up to its last."""
        return self.depth + len(self.blocks)

    def __repr__(self) -> str:
        return (
            f"blocks {self.blocks} at {self.depth} heat {self.heat:.3f} hits {self.hits} children {len(self.children)}"
        )
