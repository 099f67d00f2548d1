"""What a load is sent to: the contract of a target, and what it says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from octavo.errors import Overloaded, Unavailable

from octavo_cli.bench.sample import ServerTimes


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it is sent. Exactly one of `token_ids` and `messages` is there; messages are (role, content)."""

    max_tokens: int
    token_ids: tuple[int, ...] = ()
    messages: tuple[tuple[str, str], ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = True
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """The server's count; None where it says nothing."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Described:
    """A target's own account of what it serves; what differs between two runs is listed when they are compared."""

    model: str
    vocab_size: int
    max_model_len: int
    facts: Mapping[str, Any] = field(default_factory=dict)


class Heard(Protocol):
    """Takes what arrives, and stamps it."""

    def part(self, tokens: int, token_ids: tuple[int, ...] = (), text: str = "") -> bool:
        """A chunk arrived; True when the client leaves now, and the target must end the call."""

    def usage(self, usage: Usage, server: ServerTimes) -> None:
        """The server's own account, at the end."""


class Target(Protocol):
    """Speaks one protocol to one server. Used inside one loop, by many requests at once.

    `send` returns when the answer is whole or the client left; it raises OctavoError when the server refused
    (Overloaded, or Unavailable before the first token) or failed, and never retries: a retry would hide it.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def describe(self) -> Described:
        """What is served. Raises OctavoError when nothing answers."""

    async def send(self, request: Request, heard: Heard) -> None:
        """Sends, and hands on what comes."""


def is_rejection(error: Exception, had_tokens: bool) -> bool:
    """Whether the server refused the work, rather than failed at it."""
    if had_tokens:
        return False
    return isinstance(error, Overloaded) or (isinstance(error, Unavailable) and error.reason.startswith("rejected"))
