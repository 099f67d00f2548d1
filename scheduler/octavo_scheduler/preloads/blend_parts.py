"""Blend: what of a prompt's chunks lies in one worker's pool, and what is computed in spite of it. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_scheduler.fleet import Worker
from octavo_scheduler.orders import BlendPart
from octavo_scheduler.preloads.book import Preload, PreloadBook
from octavo_scheduler.preloads.rule import PromptChunk
from octavo_scheduler.request import Choice, Request

CAPABILITY = "blending"


@dataclass(slots=True)
class Blend:
    """What of a prompt's chunks lies in one worker's pool. `end`: positions that the worker puts together."""

    parts: list[BlendPart] = field(default_factory=list)
    end: int = 0
    share: float = 0.0  # of the moved tokens, computed again

    @property
    def sources(self) -> list[int]:
        """Blocks of others that it copies from, each as often as it is named."""
        return [block for part in self.parts for block in part.block_ids]

    @property
    def reused(self) -> int:
        """Tokens whose KV is copied."""
        return sum(part.count for part in self.parts)

    @property
    def moved(self) -> int:
        """Of these, the ones whose context is another: all but a chunk at the front."""
        return sum(part.count for part in self.parts if part.start or part.first)

    def computed(self, length: int) -> int:
        """Tokens of a prompt of `length` that are prefilled in spite of it."""
        exact = self.reused - self.moved
        return max(1, length - exact - int(self.moved * (1 - self.share)))


def blend_of(book: PreloadBook, worker: Worker, choice: Choice, share: float) -> Blend | None:
    """What this worker's pool holds of the request's chunks; None: no chunk behind the first. Changes nothing."""
    request = choice.request
    if CAPABILITY not in worker.hello.capabilities or request.handoff is not None:
        return None
    blend = Blend(share=share)
    for chunk in request.cache.chunks:
        if (part := _part(book, worker, request, chunk)) is not None:
            blend.parts.append(part)
            blend.end = min(chunk.start + chunk.tokens, choice.length - 1)
    return blend if blend.moved else None


def preload_of(book: PreloadBook, request: Request, chunk: PromptChunk) -> Preload | None:
    """The preload whose tokens stand in the prompt there; None when it was swapped or removed after the prompt was made."""
    preload = book.active.get((request.tenant, chunk.name))
    if preload is None or preload.generation != request.cache.generation:
        return None
    ids = preload.prompt[chunk.skip : chunk.skip + chunk.tokens]
    return preload if ids == request.prompt[chunk.start : chunk.start + chunk.tokens] else None


def _part(book: PreloadBook, worker: Worker, request: Request, chunk: PromptChunk) -> BlendPart | None:
    preload = preload_of(book, request, chunk)
    if preload is None:
        return None
    blocks = worker.index.match(preload.keys, len(preload.keys))
    count = min(len(blocks) * worker.block_tokens - chunk.skip, chunk.tokens, len(request.prompt) - 1 - chunk.start)
    if count <= 0:
        return None
    return BlendPart(chunk.start, count, chunk.skip, blocks[: -(-(chunk.skip + count) // worker.block_tokens)])
