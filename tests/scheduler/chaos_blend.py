"""What a chaos worker checks of blends: that a chunk's blocks hold what the prompt says, for as long as they are copied from,
and that no block of a blended sequence ever gets a key or leaves the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo_scheduler.orders import Admit

if TYPE_CHECKING:
    from tests.scheduler.chaos import ChaosWorker


class Blends:
    """The blended sequences of one worker."""

    def __init__(self, worker: ChaosWorker) -> None:
        self._worker = worker
        self._inexact: set[int] = set()
        self._sources: dict[int, list[tuple[list[int], list[int]]]] = {}  # seq -> (blocks, what they held)

    def begin(self, order: Admit, chain: list[int], alone: list[list[int]]) -> None:
        """Puts the first positions together; `alone`: what each part's blocks hold where they begin with it."""
        size, content = self._worker.block_tokens, self._worker.content
        assert not order.wait_xfer and 0 <= order.blend_share <= 1
        for part, own in zip(order.blend_parts, alone, strict=True):
            held = self._held(part.block_ids)
            assert part.count > 0 and part.start + part.count <= order.cached_len
            assert not set(part.block_ids) & set(order.block_ids), "it copies from its own blocks"
            assert part.first or held[: part.count] == own, "a chunk's blocks hold something else"
            assert part.first + part.count <= len(held) and not self._inexact & set(part.block_ids)
        self._sources[order.seq] = [(part.block_ids, self._held(part.block_ids)) for part in order.blend_parts]
        for at in range(order.cached_len):
            content[order.block_ids[at // size]][at % size] = chain[at]
        for blocks in (order.block_ids, *(item.block_ids for item in order.siblings)):
            self._inexact.update(blocks)

    def granted(self, seq: int, blocks: list[int]) -> None:
        """What is computed behind a blend is not exact either."""
        if seq in self._sources:
            self._inexact.update(blocks)

    def end(self, seq: int) -> None:
        """The sources were held until now."""
        for blocks, before in self._sources.pop(seq, ()):
            assert self._held(blocks) == before, "a chunk's blocks were taken by others while it was copied"

    def forget(self, block: int) -> None:
        """It is somebody else's now."""
        self._inexact.discard(block)

    def refuse(self, block: int) -> None:
        """Whoever gives it a key, or hands it to a store, takes it for exact."""
        assert block not in self._inexact, f"block {block} was blended and is taken for exact"

    def _held(self, blocks: list[int]) -> list[int]:
        return [value for block in blocks for value in self._worker.content[block]]
