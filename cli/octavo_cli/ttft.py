"""The parts of the time to the first token, as a request's span carries them (docs/tracing.md)."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.ttft import PARTS

from octavo_cli.spans import Span

PREFIX = "octavo.ttft."
TTFT_KEY = "gen_ai.latency.time_to_first_token"


@dataclass(frozen=True, slots=True)
class Ttft:
    """Milliseconds; `parts` has every name of PARTS."""

    total_ms: float
    parts: dict[str, float]

    @property
    def adds_up(self) -> bool:
        """The parts are the whole, within 1 ms or 1%."""
        return abs(sum(self.parts.values()) - self.total_ms) <= max(1.0, 0.01 * self.total_ms)

    def largest(self) -> str:
        """The name of the longest part."""
        return max(self.parts, key=lambda name: self.parts[name])


def ttft_of(request: Span) -> Ttft | None:
    """The decomposition that a request span carries; None without a first token, for a client that attached, or with a part that is no
    number."""
    total_s = request.attributes.get(TTFT_KEY)
    if not isinstance(total_s, int | float) or f"{PREFIX}transport_us" not in request.attributes:
        return None
    told = [request.attributes.get(f"{PREFIX}{name}_us", 0) for name in PARTS]
    if not all(isinstance(value, int | float) for value in told):
        return None
    parts = {name: value / 1e3 for name, value in zip(PARTS, told, strict=True)}
    return Ttft(float(total_s) * 1e3, parts)
