"""What the client saw of one request. Times are seconds on the client's monotonic clock since the run began."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["running", "ok", "rejected", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """The server's own account, in milliseconds since it received the request; None where it says nothing."""

    ttft_ms: float | None = None
    e2e_ms: float | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    worker_wait_ms: float | None = None


@dataclass(slots=True)
class Sample:
    """One request from its scheduled arrival to its end.

    Every latency counts from `scheduled_s`: a client that was late to send, or a server that made it wait, cannot hide.
    """

    session: str
    turn: int
    scheduled_s: float
    duplicate: bool = False
    sent_s: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """(time, tokens) of every chunk that held tokens."""
    ended_s: float = 0.0
    outcome: Outcome = "running"
    reason: str = ""
    """Of a rejection or failure."""
    prompt_tokens: int = 0
    cached_tokens: int | None = 0
    """None: the server does not say."""
    output_tokens: int = 0
    tokens_known: bool = True
    """False: the server counts no tokens, so a chunk was taken for one."""
    server: ServerTimes = ServerTimes()
    token_ids: list[int] = field(default_factory=list)
    text: str = ""

    @property
    def key(self) -> tuple[str, int]:
        """Names the same request in another run."""
        return self.session, self.turn

    @property
    def ttft_ms(self) -> float | None:
        """Scheduled arrival to the first token."""
        return (self.arrivals[0][0] - self.scheduled_s) * 1000.0 if self.arrivals else None

    @property
    def e2e_ms(self) -> float | None:
        """Scheduled arrival to the last token of a whole answer."""
        return (self.arrivals[-1][0] - self.scheduled_s) * 1000.0 if self.outcome == "ok" and self.arrivals else None

    @property
    def tpot_ms(self) -> float | None:
        """(last - first token) / (tokens - 1) of a whole answer; None for one token, which has no time per output token."""
        if self.outcome != "ok" or self.output_tokens < 2 or len(self.arrivals) < 2:
            return None
        # tokens of the first chunk were there at the first moment: they took no time of their own
        return (self.arrivals[-1][0] - self.arrivals[0][0]) * 1000.0 / (self.output_tokens - 1)

    @property
    def gaps_ms(self) -> list[float]:
        """Times between chunks, whole: a stall is not divided among the tokens that came after it."""
        return [(after[0] - before[0]) * 1000.0 for before, after in itertools.pairwise(self.arrivals)]

    @property
    def stall_ms(self) -> float | None:
        """The longest time the reader waited between two chunks."""
        return max(self.gaps_ms, default=None)

    @property
    def lag_ms(self) -> float:
        """How late the client itself was."""
        return (self.sent_s - self.scheduled_s) * 1000.0


@dataclass(frozen=True, slots=True)
class Run:
    """All requests of one measured interval, warm-up left out."""

    samples: tuple[Sample, ...]
    client_cpu_s: float = 0.0
    """CPU seconds of this process while it measured."""

    @property
    def began_s(self) -> float:
        """The first scheduled arrival."""
        return min(sample.scheduled_s for sample in self.samples)

    @property
    def wall_s(self) -> float:
        """First scheduled arrival to the last end."""
        return max(1e-9, max(sample.ended_s for sample in self.samples) - self.began_s)

    def with_outcome(self, outcome: Outcome) -> list[Sample]:
        """The samples that ended so."""
        return [sample for sample in self.samples if sample.outcome == outcome]

    def answered(self) -> list[Sample]:
        """Whole answers, each request once: of an original and its duplicate the one that ended first."""
        first: dict[tuple[str, int], Sample] = {}
        for sample in sorted(self.with_outcome("ok"), key=lambda item: item.ended_s):
            first.setdefault(sample.key, sample)
        return list(first.values())
