"""What a check found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo_cli.check.reference import Reference
from octavo_cli.check.subject import Subject

Verdict = Literal["pass", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class Result:
    """One check's verdict, with what it rests on. `said` names what is wrong, or why nothing could be said."""

    name: str
    verdict: Verdict
    said: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


class Wrong(Exception):
    """A check found the server at fault; the message says how, facts hold the figures."""

    def __init__(self, said: str, **facts: Any) -> None:
        super().__init__(said)
        self.facts = facts


class Unjudged(Exception):
    """A check cannot be made here; the message says what it would need."""


Check = Callable[[Subject, Reference | None], Awaitable[Mapping[str, Any]]]
"""Returns the figures it passes on; raises Wrong or Unjudged, or the OctavoError of a request that must not fail."""
