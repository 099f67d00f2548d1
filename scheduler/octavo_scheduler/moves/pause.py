"""A client that has paused, and what it left."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from octavo_scheduler.fleet import Worker
from octavo_scheduler.policy import SECOND_US
from octavo_scheduler.request import Request

Decision = Literal["keep", "offload", "drop"]

GIVE_UP = 5
"""After so many expected pauses nobody comes back any more."""
GIVE_UP_LEAST_US = 2 * SECOND_US


@dataclass(slots=True, eq=False)
class Pause:
    """One client that has paused."""

    request: Request
    tool: str
    given_us: int
    expected_us: float
    started_us: int
    worker: Worker
    keys: list[bytes]  # of the full blocks that the worker had at the beginning
    decision: Decision = "drop"
    kept: list[int] = field(default_factory=list)  # blocks, head first
    copied_us: float = 0.0  # predicted time of the copies out, so far
    resumed_us: int = -1  # the client is back, and waits for its admission

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self.request.tenant

    def waited_us(self, now_us: int) -> int:
        """So far."""
        return now_us - self.started_us

    def gives_up_us(self) -> float:
        """When nobody is expected any more."""
        return self.started_us + max(GIVE_UP_LEAST_US, GIVE_UP * self.expected_us)
