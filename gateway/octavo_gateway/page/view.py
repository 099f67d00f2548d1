"""What one audience may see of a moment: everything for an admin, one's own requests and figures for a tenant."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from octavo_gateway.page.latency import LatencyWindow, Measured, goodput, latency
from octavo_gateway.requests import Audience


@dataclass(frozen=True, slots=True)
class Moment:
    """The cell as the scheduler last told it, and what runs through this gateway."""

    cell: dict[str, Any] = field(default_factory=dict)
    running: tuple[Measured, ...] = ()
    away: str = ""  # why there is no cell to show, or why the gateway takes no request of it


EMPTY_CELL: dict[str, Any] = {
    "ready": False, "why_not_ready": "the scheduler does not answer", "waiting_count": 0, "running_count": 0,
    "waiting_prompt_tokens": 0, "workers": [], "stores": [], "running": [], "waiting": [], "recent": [],
    "ledger": [], "trials": [], "slo_classes": [], "gateways": [], "counters": {}, "tenants": [],
}  # fmt: skip


def show(moment: Moment, window: LatencyWindow, audience: Audience, model: str) -> dict[str, Any]:
    """The JSON of one update. A tenant's has no workers, stores, ledger, counters and nobody else's requests."""
    cell = moment.cell or EMPTY_CELL
    tenant = None if audience.sees_all else audience.tenant
    ended = window.recent(tenant)
    shown: dict[str, Any] = {
        "time_unix_s": round(time.time(), 3),
        "model": model,
        "tenant": audience.tenant,
        "sees_all": audience.sees_all,
        "ready": cell["ready"] and not moment.away,
        "why_not_ready": moment.away or cell["why_not_ready"],
        "latency": latency(ended, (item for item in moment.running if tenant in (None, item.tenant))),
        "goodput": goodput(ended, cell["slo_classes"]),
    }
    for name in ("running", "waiting", "recent"):
        shown[name] = [item for item in cell[name] if tenant in (None, item["tenant"])]
    shown["tenants"] = [item for item in cell.get("tenants", []) if tenant in (None, item["tenant"])]
    if audience.sees_all:
        kept = (
            "waiting_count",
            "running_count",
            "waiting_prompt_tokens",
            "workers",
            "stores",
            "ledger",
            "trials",
            "gateways",
            "counters",
        )
        return shown | {name: cell[name] for name in kept}
    return shown | {
        "waiting_count": len(shown["waiting"]),
        "running_count": len(shown["running"]),
        "waiting_prompt_tokens": sum(item["prompt_tokens"] for item in shown["waiting"]),
        "workers": [], "stores": [], "ledger": [], "trials": [], "gateways": [], "counters": {},
    }  # fmt: skip


def with_gateway_part(timeline: dict[str, Any], found: Iterable[Measured]) -> dict[str, Any]:
    """Moves a timeline's zero to the request's arrival at this gateway, when it came through here."""
    for item in found:
        before_ms = item.before_submit_s * 1e3
        for span in timeline["spans"]:
            span["start_ms"] += before_ms
            span["end_ms"] += before_ms
        own = {
            "name": "checks and tokens", "service": "gateway", "start_ms": 0.0, "end_ms": before_ms,
            "running": False, "attributes": {},
        }  # fmt: skip
        timeline["spans"].insert(0, own)
        timeline["ttft_ms"] = round(item.ttft_s * 1e3, 3) if item.ttft_s >= 0 else None
    return timeline
