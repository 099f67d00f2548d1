"""What this gateway's clients waited for during the last minute: TTFT and ITL percentiles, and goodput per SLO class.

Keeping a request costs one append at its end; everything is computed when somebody looks.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from octavo_gateway.live import LiveRequest

WINDOW_S: Final = 60.0
MAX_REQUESTS: Final = 4096
MAX_GAPS: Final = 200_000
"""Of all kept requests: beyond it the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One request as this gateway saw it. Seconds; ttft_s is negative before the first token."""

    tenant: str
    slo_class: str
    outcome: str
    missed_by: str  # why an ended one missed its SLO class; empty: it met it
    ended_s: float
    before_submit_s: float
    ttft_s: float
    gaps_s: array[float]


class LatencyWindow:
    """The requests that ended within WINDOW_S, bounded in number and in gaps."""

    def __init__(self, clock: Callable[[], float], default_class: str, missed_by: Callable[[LiveRequest], str]) -> None:
        self._clock = clock
        self._missed_by = missed_by
        self._default_class = default_class
        self._ended: OrderedDict[str, Measured] = OrderedDict()
        self._gaps = 0

    def ended(self, live: LiveRequest) -> None:
        """Keeps a request that came to its end."""
        if live.admitted is None:
            return
        self._forget(live.wire_id)
        self._ended[live.wire_id] = measured = self.measure(live, live.completed)
        self._gaps += len(measured.gaps_s)
        while len(self._ended) > MAX_REQUESTS or (self._gaps > MAX_GAPS and len(self._ended) > 1):
            self._forget(next(iter(self._ended)))

    def measure(self, live: LiveRequest, now_s: float) -> Measured:
        """A request so far."""
        return Measured(
            live.tenant,
            (live.admitted.slo_class if live.admitted else "") or self._default_class,
            live.outcome,
            self._missed_by(live) if live.ended else "",
            now_s,
            live.submitted - live.received,
            live.first_token - live.received if live.first_token else -1.0,
            live.gaps_s,
        )

    def find(self, wire_id: str) -> Measured | None:
        """A kept request."""
        return self._ended.get(wire_id)

    def _forget(self, wire_id: str) -> None:
        gone = self._ended.pop(wire_id, None)
        self._gaps -= len(gone.gaps_s) if gone else 0

    def recent(self, tenant: str | None) -> list[Measured]:
        """What ended within the window, of one tenant or of all."""
        since_s = self._clock() - WINDOW_S
        while self._ended and next(iter(self._ended.values())).ended_s < since_s:
            self._forget(next(iter(self._ended)))
        return [item for item in self._ended.values() if tenant is None or item.tenant == tenant]


def latency(ended: Iterable[Measured], running: Iterable[Measured]) -> dict[str, Any]:
    """Percentiles in milliseconds over requests (TTFT) and over all gaps between tokens, those of running ones too."""
    both = [*ended, *running]
    gaps = sorted(gap for item in both for gap in item.gaps_s)
    return {
        "window_s": WINDOW_S,
        "ttft_ms": percentiles(sorted(item.ttft_s for item in both if item.ttft_s >= 0)),
        "itl_ms": percentiles(gaps),
        "longest_stall_ms": round(gaps[-1] * 1e3, 3) if gaps else None,
    }


def percentiles(ordered_s: Sequence[float]) -> dict[str, float | int | None]:
    """p50, p95 and p99 of ascending seconds, in milliseconds, and how many there are."""
    found: dict[str, float | int | None] = {"n": len(ordered_s)}
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        found[name] = round(at_share(ordered_s, share) * 1e3, 3) if ordered_s else None
    return found


def at_share(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of an ascending, non-empty sequence."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def goodput(ended: Iterable[Measured], classes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per class {name, ttft_ms, itl_p99_ms}: requests that met it, that missed it, and the former per second.

    What its client cancelled counts for neither.
    """
    judged = [item for item in ended if item.outcome != "cancelled"]
    rows = []
    for slo in classes:
        own = [item for item in judged if item.slo_class == slo["name"]]
        met = sum(not item.missed_by for item in own)
        rows.append(
            {
                "class": slo["name"],
                "ttft_ms": slo["ttft_ms"],
                "itl_p99_ms": slo["itl_p99_ms"],
                "met": met,
                "missed": len(own) - met,
                "per_s": round(met / WINDOW_S, 3),
            }
        )
    return rows
