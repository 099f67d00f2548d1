"""One node of the radix tree: a run of blocks that nobody has left or joined in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


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


def check_tree(root: Node, keys: Mapping[int, bytes], node_of: Sequence[Node | None], nodes: int) -> list[str]:
    """Whether the tree below `root` has `nodes` nodes, holds just the blocks of `keys`, and its links agree; what is wrong."""
    wrong: list[str] = []
    found: set[int] = set()
    counted, stack = 0, list(root.children.items())
    while stack:
        first, node = stack.pop()
        counted += 1
        if not node.blocks or keys.get(node.blocks[0]) != first:
            wrong.append(f"a node is malformed: {node!r}")
            continue
        found.update(node.blocks)
        wrong += [f"block {block} points elsewhere" for block in node.blocks if node_of[block] is not node]
        for key, child in node.children.items():
            if child.parent is not node or child.depth != node.end:
                wrong.append(f"a child hangs wrong: {child!r} below {node!r}")
            stack.append((key, child))
    if found != keys.keys() or counted != nodes:
        wrong.append(f"the tree holds {len(found)} blocks in {counted} nodes, the maps {len(keys)} in {nodes}")
    if sum(node is not None for node in node_of) != len(found):
        wrong.append("a block that is not indexed has a node")
    return wrong
