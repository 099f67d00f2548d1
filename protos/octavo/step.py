"""compose(): which tokens one step computes. A pure function that worker, chaos worker and simulator share.

All running decodes first, then prefill chunks by rank until the token budget is filled: stall-free batching
(Sarathi-Serve, arXiv 2403.02310). Decode is not a special kind: a sequence that lacks exactly its last token's KV.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class SeqView:
    """What compose needs of a sequence; lengths in tokens."""

    slot: int
    rank: int  # prefill order, smaller first
    length: int  # tokens known (prompt + output)
    computed: int  # positions whose KV is written; < length
    capacity: int  # positions that its granted blocks cover
    paused: bool = False


@dataclass(frozen=True, slots=True)
class StepBudget:
    """The scheduler's step policy, in tokens and sequences."""

    with_decodes: int
    alone: int
    max_seqs: int


@dataclass(slots=True)  # not frozen: that costs four times as much to make, once per token
class Chunk:
    """Compute positions [start, start + count) of the sequence in `slot`."""

    slot: int
    start: int
    count: int
    samples: bool  # the chunk reaches the last known token, so its logits give the next one


@dataclass(slots=True)
class Step:
    chunks: list[Chunk] = field(default_factory=list)
    starved: list[int] = field(default_factory=list)  # slots that lack a block for their next token
    decode_seqs: int = 0
    prefill_tokens: int = 0


def compose(seqs: Iterable[SeqView], budget: StepBudget) -> Step:
    """One step over `seqs`. A sequence without a granted block for its next position is starved and skipped."""
    step = Step()
    prefills: list[SeqView] = []
    for seq in seqs:
        if seq.paused:
            continue
        if seq.capacity <= seq.computed:
            step.starved.append(seq.slot)
        elif seq.length - seq.computed > 1:
            prefills.append(seq)
        elif len(step.chunks) < budget.max_seqs:
            step.chunks.append(Chunk(seq.slot, seq.computed, 1, True))
    step.decode_seqs = len(step.chunks)
    left = (budget.with_decodes if step.chunks else budget.alone) - len(step.chunks)
    if not step.chunks:
        left = max(left, 1)
    prefills.sort(key=lambda seq: (seq.rank, seq.slot))
    for seq in prefills:
        if left <= 0 or len(step.chunks) >= budget.max_seqs:
            break
        count = min(seq.length - seq.computed, left, seq.capacity - seq.computed)
        step.chunks.append(Chunk(seq.slot, seq.computed, count, seq.computed + count == seq.length))
        step.prefill_tokens += count
        left -= count
    return step
