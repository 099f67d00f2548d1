"""CacheRule: what a request says about the KV that it leaves behind."""

from __future__ import annotations

from dataclasses import dataclass

HBM = "hbm"


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Prompt tokens [start, start + tokens) are those of a preload from its token `skip` on."""

    name: str
    start: int
    tokens: int
    skip: int = 0


@dataclass(frozen=True, slots=True)
class CacheRule:
    """Checked by the gateway. `ttl_us` 0: no limit; `tiers` empty: all."""

    ttl_us: int = 0
    pin: bool = False
    priority: int = 0
    tiers: tuple[str, ...] = ()
    generation: int = 0
    """Of the tenant's namespace, in its keys."""
    layout: bytes = b""
    """First bytes of the root key, for explanations."""
    preload: str = ""
    """That the prompt begins with."""
    chunks: tuple[PromptChunk, ...] = ()
    """Preloads that the prompt consists of, in order, before text of its own."""

    @property
    def goes_below(self) -> bool:
        """Its blocks may leave the pool for some store."""
        return not self.tiers or any(tier != HBM for tier in self.tiers)

    @property
    def plain(self) -> bool:
        """Nothing is to be done for it."""
        return not (self.ttl_us or self.pin or self.priority)


NO_RULE = CacheRule()
