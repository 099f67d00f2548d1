"""The preloads of a cell, by (tenant, name): the one in force, and the one that is being built to replace it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from blake3 import blake3
from octavo.packing import pack_u32

from octavo_scheduler.prefix.pins import Pin
from octavo_scheduler.request import Request

Name = tuple[str, str]
"""(tenant, name)."""


@dataclass(slots=True, eq=False)
class Preload:
    """A document set. Only its whole blocks are kept; `keys` are theirs, known once a worker was."""

    tenant: str
    name: str
    version: int
    form: str
    salt: str
    prompt: array[int]
    mac: bytes
    sampling: bytes
    generation: int
    since_us: int
    state: str = "building"  # building, ready, evicted, failed
    why: str = ""
    pinned: bool = True  # wanted; whether it is so now says `pin`
    keys: list[bytes] = field(default_factory=list)
    root_key: bytes = b""  # of the workers that the keys were made for
    namespace_root: bytes = b""
    pin: Pin | None = None
    epoch: int = 0  # of the worker that holds it
    request: Request | None = None  # that computes it now
    source: dict[str, int] = field(default_factory=dict)
    started_us: int = 0
    build_us: int = 0
    retry_us: int = 0  # not built again before
    uses: int = 0
    tag: bytes = b""
    restored: bool = False  # from an earlier scheduler: tried until it is there
    _content: bytes = b""

    @property
    def held_blocks(self) -> int:
        """Blocks that are pinned now."""
        return len(self.pin.blocks) if self.pin is not None and self.pin.live else 0

    @property
    def content(self) -> bytes:
        """16 bytes that tell what requests continue from any other: a version is used again once its name was removed."""
        if not self._content:
            said = "\0".join((self.form, self.salt)).encode()
            self._content = blake3(said + b"\0" + pack_u32(self.prompt)).digest(16)
        return self._content


class PreloadBook:
    """Owns no block: pins are ended by whoever takes a preload out."""

    __slots__ = ("active", "by_request", "pending")

    def __init__(self) -> None:
        self.active: dict[Name, Preload] = {}
        self.pending: dict[Name, Preload] = {}
        self.by_request: dict[Request, Preload] = {}

    def __iter__(self) -> Iterator[Preload]:
        yield from list(self.active.values())
        yield from list(self.pending.values())

    def named(self, tenant: str, name: str) -> Preload | None:
        """What serves under this name; while there is none, what is being built."""
        return self.active.get((tenant, name)) or self.pending.get((tenant, name))

    def of_tenant(self, tenant: str) -> list[Preload]:
        """What serves, or will for the first time; by name."""
        names = sorted({name for owner, name in (*self.active, *self.pending) if owner == tenant})
        found = (self.named(tenant, name) for name in names)
        return [preload for preload in found if preload is not None]

    def drop_pending(self, preload: Preload) -> None:
        """It will not come to serve."""
        name = (preload.tenant, preload.name)
        if self.pending.get(name) is preload:
            del self.pending[name]

    def next_version(self, tenant: str, name: str) -> int:
        """Of new content under this name."""
        known = (self.active.get((tenant, name)), self.pending.get((tenant, name)))
        return 1 + max((preload.version for preload in known if preload is not None), default=0)
