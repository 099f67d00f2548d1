"""Beams on a worker: sequences that take no token by themselves. They offer the best, wait, and go on as a Fork says."""

from __future__ import annotations

from collections.abc import Mapping

from octavo_gpuworker.backends.blocks import BlockPool
from octavo_gpuworker.orders import BeamRow, ForkOrder, TokenLogprobs
from octavo_gpuworker.sequence import Sequence
from octavo_gpuworker.slots import SlotTable


def row_of(seq: Sequence, logprobs: TokenLogprobs) -> BeamRow:
    """What the beam offers behind its tokens."""
    return BeamRow(seq.seq, len(seq.tokens), logprobs.top_tokens, logprobs.top_logprobs)


def fork(order: ForkOrder, by_seq: Mapping[int, Sequence], pool: BlockPool, slots: SlotTable) -> None:
    """Gives every beam its token, and those that go on from another one its tokens and KV.

    A beam that others go on from goes on from itself, so what is copied is not written before. One that is gone, or
    does not wait, is passed over, as in any order.
    """
    beams = [by_seq.get(seq) for seq in order.seqs]
    for at, (child, place) in enumerate(zip(beams, order.parents, strict=True)):
        parent = beams[place]
        if place != at and child is not None and parent is not None and child.parked and parent.parked:
            _inherit(child, parent, pool)
            slots.admit(child)
    for seq, token in zip(beams, order.tokens, strict=True):
        if seq is not None and seq.parked:
            seq.parked = False
            slots.append(seq.slot, len(seq.tokens), token)
            seq.tokens.append(token)


def _inherit(child: Sequence, parent: Sequence, pool: BlockPool) -> None:
    """Full blocks are shared, the partial one is copied into the child's own."""
    full, partial = divmod(parent.computed, pool.block_tokens)
    if partial:
        pool.copy_block(parent.blocks[full], child.blocks[full])
    child.blocks[:full] = parent.blocks[:full]
    child.tokens, child.computed = list(parent.tokens), parent.computed
