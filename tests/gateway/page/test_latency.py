"""Percentiles, goodput and the bounds of what is kept."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from octavo_gateway.page import latency as module
from octavo_gateway.page.latency import LatencyWindow, Measured, at_share, goodput, latency


def measured(ttft_s: float = 0.1, gaps: tuple[float, ...] = (), outcome: str = "finished", **other: Any) -> Measured:
    given = {
        "tenant": "default",
        "slo_class": "chat",
        "ended_s": 0.0,
        "before_submit_s": 0.001,
        "missed_by": "",
        **other,
    }
    return Measured(outcome=outcome, ttft_s=ttft_s, gaps_s=array("f", gaps), **given)


def ended(name: str, completed: float, gaps: int = 3, tenant: str = "default", slo_class: str = "") -> Any:
    """A live request at its end, as far as the window looks at it."""
    return SimpleNamespace(
        wire_id=name, tenant=tenant, admitted=SimpleNamespace(slo_class=slo_class), outcome="finished", ended=True,
        completed=completed, submitted=10.002, received=10.0, first_token=10.1, gaps_s=array("f", [0.02] * gaps),
    )  # fmt: skip


def test_nearest_rank() -> None:
    values = [float(i) for i in range(1, 101)]
    assert [at_share(values, share) for share in (0.5, 0.95, 0.99)] == [50.0, 95.0, 99.0]
    assert at_share([7.0], 0.99) == 7.0


def test_latency_counts_requests_for_ttft_and_gaps_for_itl() -> None:
    shown = latency([measured(0.1, (0.01, 0.03))], [measured(-1.0), measured(0.3, (0.05,))])
    assert shown["ttft_ms"]["n"] == 2 and shown["ttft_ms"]["p99"] == pytest.approx(300)
    assert shown["itl_ms"]["n"] == 3 and shown["itl_ms"]["p50"] == pytest.approx(30, rel=1e-3)
    assert shown["longest_stall_ms"] == pytest.approx(50, rel=1e-3)
    assert latency([], [])["ttft_ms"] == {"n": 0, "p50": None, "p95": None, "p99": None}


def test_goodput_leaves_out_what_its_client_cancelled() -> None:
    items = [
        measured(), measured(9.0, missed_by="queue"), measured(outcome="cancelled", missed_by="cancelled"),
        measured(slo_class="unknown"),
    ]  # fmt: skip
    (row,) = goodput(items, [{"name": "chat", "ttft_ms": 500.0, "itl_p99_ms": 50.0}])
    assert (row["class"], row["met"], row["missed"]) == ("chat", 1, 1)
    assert row["per_s"] == pytest.approx(1 / module.WINDOW_S, abs=1e-3)


def test_the_window_forgets_by_age_and_shows_a_tenant_its_own() -> None:
    now = [11.0]
    window = LatencyWindow(lambda: now[0], "default", lambda live: "itl" if live.tenant == "acme" else "")
    window.ended(ended("a", 11.0))
    window.ended(ended("b", 11.0, tenant="acme", slo_class="chat"))
    assert [item.tenant for item in window.recent(None)] == ["default", "acme"]
    assert [(item.tenant, item.slo_class) for item in window.recent("acme")] == [("acme", "chat")]
    assert [item.missed_by for item in window.recent(None)] == ["", "itl"]
    assert window.recent("default")[0].slo_class == "default"
    found = window.find("a")
    assert found is not None
    assert (found.ttft_s, found.before_submit_s) == (pytest.approx(0.1), pytest.approx(0.002))
    now[0] = 11.0 + module.WINDOW_S + 1
    assert window.recent(None) == [] and window.find("a") is None


def test_the_window_is_bounded_in_requests_and_in_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    window = LatencyWindow(lambda: 11.0, "default", lambda live: "")
    monkeypatch.setattr(module, "MAX_REQUESTS", 10)
    for number in range(30):
        window.ended(ended(f"r{number}", 11.0))
    assert len(window.recent(None)) == 10
    monkeypatch.setattr(module, "MAX_GAPS", 100)
    for number in range(30):
        window.ended(ended(f"g{number}", 11.0, gaps=40))
    assert sum(len(item.gaps_s) for item in window.recent(None)) <= 100
    window.ended(ended("g29", 11.0, gaps=40))  # the same id again is one request
    assert len([item for item in window.recent(None) if len(item.gaps_s) == 40]) == 2
