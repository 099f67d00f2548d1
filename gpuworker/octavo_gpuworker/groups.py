"""Groups: choices of one prompt. A leader prefills for its siblings; at the end they share its full blocks and go their own ways."""

from __future__ import annotations

from octavo_gpuworker.backends.blocks import BlockPool
from octavo_gpuworker.sequence import Sequence


def promote(leader: Sequence, block_tokens: int) -> None:
    """The leader left before its prefill ended: its first sibling prefills for the others, from what they share."""
    heir, *others = leader.siblings
    shared = heir.shared_blocks(leader) * block_tokens
    # a blend that has not ended leaves nothing to go on from: the heir computes all of it
    heir.computed = 0 if leader.blending else min(leader.computed, shared, len(heir.tokens) - 1)
    heir.leader, heir.siblings, heir.split_len = 0, others, leader.split_len if others else 0
    heir.wait_xfer, heir.wait_base, heir.joins_len = leader.wait_xfer, leader.wait_base, leader.joins_len
    for other in others:
        other.leader = heir.seq
    leader.siblings = []


def split(leader: Sequence, pool: BlockPool, *, ended: bool) -> None:
    """Its siblings begin to live, if what they have in common is computed: its whole prefill (`ended`), or up to split_len."""
    if leader.computed >= leader.split_len if leader.split_len else ended:
        for sibling in leader.siblings:
            _begin(leader, sibling, pool)
        leader.siblings, leader.split_len = [], 0


def _begin(leader: Sequence, sibling: Sequence, pool: BlockPool) -> None:
    """Full common blocks are shared already, what is not (the partial one) is copied."""
    common = leader.split_len or leader.computed
    covered = -(-common // pool.block_tokens)
    for ours, theirs in zip(leader.blocks[:covered], sibling.blocks, strict=False):
        if ours != theirs:
            pool.copy_block(ours, theirs)
    sibling.computed, sibling.leader, sibling.started_ns = common, 0, leader.started_ns
