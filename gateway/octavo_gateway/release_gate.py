"""The release gate: closed until the checks have passed, and whether it is open. Nothing here speaks to anybody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.errors import Unavailable

WAITING = "release gate: its checks have not passed yet"


@dataclass(slots=True)
class Gate:
    """`open` only ever turns from False to True; a failure is told as the reason why it stays closed."""

    open: bool = False
    why: str = WAITING
    on_change: list[Callable[[], None]] = field(default_factory=list)

    def check(self) -> None:
        """Raises Unavailable while the gate is closed."""
        if not self.open:
            raise Unavailable(f"{self.why}; try again", reason="rejected-not-ready", retry_after_s=5.0)

    def decide(self, passed: bool, said: str) -> None:
        """Takes the verdict of the checks."""
        self.open = self.open or passed
        self.why = "" if self.open else f"release gate: {said or 'the checks failed'}"
        for callback in self.on_change:
            callback()
