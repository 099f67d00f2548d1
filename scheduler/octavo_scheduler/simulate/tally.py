"""What became of one simulated request, on the client's side of the links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo_scheduler.simulate.workload import Row


class Speech:
    """One worker's latest reports, each with one token of each of `owners`: when they came, and since which of them each
    owner is there."""

    __slots__ = ("owners", "since", "times")

    def __init__(self) -> None:
        self.owners: Sequence[str] = ()
        self.since: dict[str, int] = {}
        self.times: list[int] = []


@dataclass(slots=True, eq=False)
class Tally:
    """Times in microseconds. `times` are the arrivals of its tokens at the core; they are emptied by `close`."""

    number: int
    row: Row
    submitted_us: int = 0
    times: list[int] = field(default_factory=list)
    speaks: Speech | None = field(default=None, repr=False)
    """Where it has a token in each report now."""
    prompt_tokens: int = 0
    computed: int = 0
    outcome: str = ""
    reason: str = ""
    tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    queue_us: int = 0
    ttft_us: int = -1
    itl_p99_us: int = 0
    itl_max_us: int = 0
    e2e_us: int = -1

    def pause(self) -> None:
        """Books its tokens of the reports in which it spoke; another one must be for it to speak on."""
        speech, self.speaks = self.speaks, None
        if speech is not None:
            self.times += speech.times[speech.since.pop(f"r{self.number}") :]

    def close(self, gaps: Counter[int], gap_unit_us: int, edge_us: int) -> None:
        """Books the gaps of its tokens into `gaps` (gap // gap_unit_us -> count), and its own latencies.

        `edge_us` is both ways between client and core. ITL is a gap between two tokens; tokens that came in one
        report came at once, as a client sees them.
        """
        times = self.times
        self.tokens = len(times)
        if not times:
            return
        self.ttft_us = times[0] - self.submitted_us + edge_us
        self.e2e_us = times[-1] - self.submitted_us + edge_us
        own = sorted(map(int.__sub__, times[1:], times))
        if own:
            at = 0.99 * (len(own) - 1)  # as octavo.figures.quantile, without sorting again
            low = own[int(at)]
            self.itl_p99_us = round(low + (own[min(int(at) + 1, len(own) - 1)] - low) * (at - int(at)))
            self.itl_max_us = own[-1]
        gaps.update(map(gap_unit_us.__rfloordiv__, own))
        self.times = []

    def meets(self, ttft_ms: float, itl_p99_ms: float) -> bool:
        """Finished within the targets; 0: none."""
        return (
            self.outcome == "finished"
            and (not ttft_ms or self.ttft_us <= ttft_ms * 1000)
            and (not itl_p99_ms or self.itl_p99_us <= itl_p99_ms * 1000)
        )
