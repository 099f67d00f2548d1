"""The events of this package. The shell checks what people ask for (`refusal`) before it feeds them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


@dataclass(slots=True)
class PreloadPut:
    """A new preload, or new content of one. `mac` stands for the tenant's namespace (octavo.keys.namespace_mac)."""

    now_us: int
    tenant: str
    name: str
    version: int
    form: str
    prompt: array[int]
    mac: bytes
    sampling: bytes
    salt: str = ""
    generation: int = 0
    tag: bytes = b""
    """Of its blocks in the stores."""
    pinned: bool = True
    restored: bool = False
    """Of an earlier scheduler's; then `root_key` is that of the workers it was made for."""
    root_key: bytes = b""


@dataclass(slots=True)
class PreloadRemoved:
    now_us: int
    tenant: str
    name: str


@dataclass(slots=True)
class PreloadPinned:
    now_us: int
    tenant: str
    name: str
    pinned: bool


@dataclass(slots=True)
class PreloadUsed:
    now_us: int
    tenant: str
    name: str


@dataclass(slots=True)
class CacheEvicted:
    """Throws out the block of `key` and all below it, or a preload's blocks, or everything of a tenant."""

    now_us: int
    tenant: str
    key: bytes = b""
    name: str = ""
    tag: bytes = b""
    """Whole tenant: its blocks' tag in the stores."""


@dataclass(slots=True)
class NamespaceRotated:
    """From now on the tenant's keys are of `generation`; at a start it restores one, and there is nothing to throw out."""

    now_us: int
    tenant: str
    generation: int
    mac: bytes
    tag: bytes = b""
    restored: bool = False


@dataclass(slots=True)
class CacheResult:
    """What the last of these events came to; the shell reads it in the same turn."""

    blocks: int = 0
    stores: int = 0
    preloads: int = 0
    found: bool = False
    keys: list[bytes] = field(default_factory=list)
