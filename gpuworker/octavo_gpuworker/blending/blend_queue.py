"""BlendQueue: the sequences whose chunks are being put together, first come first served, a step's worth at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from octavo_gpuworker.backends.backend import Backend
from octavo_gpuworker.blending.fit import SELECTED_AT, model_refusal, pool_refusal
from octavo_gpuworker.blending.paged import PagedBlend
from octavo_gpuworker.orders import AdmitOrder
from octavo_gpuworker.sequence import Sequence

LEAST_BLOCKS = 64


@dataclass(slots=True)
class _Entry:
    seq: Sequence
    blend: PagedBlend
    steps: Iterator[int]


def blend_refusal(backend: Backend) -> str:
    """Why this backend takes no chunks, or an empty string."""
    return model_refusal(backend.config) or pool_refusal(backend.pool.block_shape)


class BlendQueue:
    """Owned by the step thread. Memory for it is taken with the first blend, and none before."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._beginning: Backend | None = None
        self._entries: deque[_Entry] = deque()

    def fault(self, order: AdmitOrder) -> str:
        """Why the Admit's chunks cannot be used, or an empty string."""
        if not order.blend_parts:
            return ""
        pool = self._backend.pool
        if reason := blend_refusal(self._backend):
            return f"blend_parts: {reason}"
        if not 0 <= order.blend_share <= 1:
            return f"blend_share: {order.blend_share} must lie in [0, 1]"
        for part in order.blend_parts:
            if not part.count or part.start + part.count > order.cached_len:
                return (
                    f"blend_parts: {part.start} + {part.count} must lie within the {order.cached_len} blended positions"
                )
            if part.first + part.count > len(part.blocks) * pool.block_tokens:
                return f"blend_parts: {part.first} + {part.count} is beyond the {len(part.blocks)} blocks"
            if wrong := [block for block in part.blocks if not 0 < block < pool.num_blocks]:
                return f"blend_parts: block {wrong[0]} is outside [1, {pool.num_blocks})"
        return ""

    def add(self, seq: Sequence, order: AdmitOrder) -> None:
        """The sequence waits from now on until its blend has ended."""
        beginning = self._with_room(-(-order.cached_len // self._backend.pool.block_tokens))
        blend = PagedBlend(
            self._backend, beginning, seq.tokens, seq.blocks, order.blend_parts, order.cached_len, order.blend_share
        )
        seq.blending = True
        self._entries.append(_Entry(seq, blend, blend.steps()))

    def drop(self, seq: Sequence) -> None:
        """It left."""
        if seq.blending:
            self._entries = deque(entry for entry in self._entries if entry.seq is not seq)

    def clear(self) -> None:
        self._entries.clear()

    @property
    def first(self) -> Sequence | None:
        """Whose blend goes on next."""
        return self._entries[0].seq if self._entries else None

    def run(self, budget: int) -> int:
        """One step of the first blend; the prefilled tokens that it was worth. Raises what a step of the backend raises."""
        entry = self._entries[0]
        entry.blend.budget = max(1, budget)
        try:
            return next(entry.steps)
        except StopIteration:
            entry.seq.blending = False
            self._entries.popleft()
            return 0

    def _with_room(self, blocks: int) -> Backend:
        """The first layers over at least so many blocks; one blend at a time uses them, from its first token on."""
        held = self._beginning
        if held is None or held.pool.num_blocks <= blocks:
            room = max(LEAST_BLOCKS, 2 ** blocks.bit_length())
            held = self._beginning = self._backend.beginning(SELECTED_AT + 1, room + 1)
        return held
