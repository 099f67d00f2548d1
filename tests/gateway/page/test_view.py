"""Who may see what: a tenant's view must not hold a trace of anybody else."""

from __future__ import annotations

import json
from array import array
from typing import Any

from octavo_gateway.page.latency import LatencyWindow, Measured
from octavo_gateway.page.view import Moment, show, with_gateway_part
from octavo_gateway.requests import Audience


def request(tenant: str, name: str) -> dict[str, Any]:
    return {"request_id": name, "tenant": tenant, "prompt_tokens": 7, "workers": ["w0"]}


CELL: dict[str, Any] = {
    "ready": True, "why_not_ready": "", "waiting_count": 5, "running_count": 6, "waiting_prompt_tokens": 99,
    "workers": [{"worker_id": "w0"}], "stores": [{"store_id": "host0"}], "gateways": ["gw"],
    "ledger": [{"technique": "prefix_cache"}], "trials": [{"technique": "join"}], "counters": {"steps": 3.0},
    "running": [request("acme", "a1"), request("globex", "g1")], "waiting": [request("globex", "g2")],
    "recent": [request("acme", "a0"), request("globex", "g0")],
    "slo_classes": [{"name": "chat", "ttft_ms": 500.0, "itl_p99_ms": 50.0}],
}  # fmt: skip


def running(tenant: str, ttft_s: float) -> Measured:
    return Measured(tenant, "chat", "running", "", 0.0, 0.001, ttft_s, array("f"))


def test_an_admin_sees_the_cell() -> None:
    window = LatencyWindow(lambda: 0.0, "default", lambda live: "")
    moment = Moment(CELL, (running("acme", 0.1), running("globex", 9.0)))
    shown = show(moment, window, Audience("ops", True), "m")
    assert (shown["waiting_count"], shown["running_count"], len(shown["running"])) == (5, 6, 2)
    assert shown["workers"] and shown["ledger"] and shown["counters"]
    assert shown["latency"]["ttft_ms"]["n"] == 2


def test_a_tenant_sees_its_own_and_nothing_else() -> None:
    window = LatencyWindow(lambda: 0.0, "default", lambda live: "")
    moment = Moment(CELL, (running("acme", 0.1), running("globex", 9.0)))
    shown = show(moment, window, Audience("acme", False), "m")
    assert [item["request_id"] for item in shown["running"] + shown["waiting"] + shown["recent"]] == ["a1", "a0"]
    assert (shown["running_count"], shown["waiting_count"], shown["waiting_prompt_tokens"]) == (1, 0, 0)
    assert shown["latency"]["ttft_ms"] == {"n": 1, "p50": 100.0, "p95": 100.0, "p99": 100.0}
    text = json.dumps(shown)
    for word in ("globex", "host0", "prefix_cache", "worker_id", "steps"):
        assert word not in text


def test_a_moment_without_a_scheduler_says_so() -> None:
    window = LatencyWindow(lambda: 0.0, "default", lambda live: "")
    shown = show(Moment(away="the scheduler does not answer (UNAVAILABLE)"), window, Audience("default", True), "m")
    assert not shown["ready"] and "UNAVAILABLE" in shown["why_not_ready"]
    assert shown["running"] == [] and shown["goodput"] == []


def test_a_timeline_begins_where_the_request_reached_the_gateway() -> None:
    span = {"name": "queue", "service": "scheduler", "start_ms": 0.0, "end_ms": 5.0, "running": False, "attributes": {}}
    seen = Measured("acme", "chat", "finished", "", 0.0, 0.002, 0.05, array("f"))
    moved = with_gateway_part({"spans": [dict(span)]}, [seen])
    own, queue = moved["spans"]
    assert (own["service"], own["start_ms"], own["end_ms"]) == ("gateway", 0.0, 2.0)
    assert (queue["start_ms"], queue["end_ms"], moved["ttft_ms"]) == (2.0, 7.0, 50.0)
    assert with_gateway_part({"spans": [dict(span)]}, [])["spans"] == [span]  # it came through another gateway
