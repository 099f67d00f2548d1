"""Profile: what the next steps of a worker spent their time on, and the protocol of who records it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Literal, Protocol

MAX_STEPS: Final = 100
"""A step of 30 layers on a CPU is 1.7 MB of trace, all of which is held in memory."""


class ProfileBusy(Exception):
    """Another profile is being recorded; one at a time."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One operation of the table, or one kernel below it."""

    kind: Literal["operation", "kernel"]
    name: str
    """operation/implementation, or the kernel's own."""
    calls: int
    time_us: float
    """On the device; on a CPU the step thread's own time."""
    bytes: int = 0
    """Operations: what they must read and write at least."""


@dataclass(frozen=True, slots=True)
class StepProfile:
    """Rows with the longest first, and the whole as Chrome trace JSON."""

    steps: int
    rows: tuple[ProfileRow, ...]
    trace: bytes


class Profiler(Protocol):
    """Records steps of the backend that owns it; `request` and `cancel` may be called from any thread."""

    def request(self, steps: int) -> Future[StepProfile]:
        """Records the next `steps` steps. ProfileBusy while another profile is wanted or recorded."""

    def cancel(self, wanted: Future[StepProfile]) -> None:
        """Gives the profile up if it has not ended; what ran is dropped at the next step."""
