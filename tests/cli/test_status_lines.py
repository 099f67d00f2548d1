"""`octavo status`: tenants with what they use of their limits, and how far predictions were off."""

from __future__ import annotations

from typing import Any

from octavo.v1 import scheduler_pb2 as pb
from octavo_cli.status import _predictions, _tenant, status_lines

STATUS: dict[str, Any] = {
    "ready": True, "urls": {}, "services": [], "blocks": {"total": None}, "requests": {"waiting": 1, "running": 2},
}  # fmt: skip


def test_a_tenant_is_shown_with_its_limits() -> None:
    limited = pb.TenantStatus(
        tenant="small", requests=2, held_blocks=7, rate_tokens_per_s=5, burst_tokens=40, tokens_left=-3, concurrency=4,
        kv_share=0.5, rejected=9,
    )  # fmt: skip
    free = pb.TenantStatus(tenant="big", requests=1, held_blocks=3, kv_share=1.0)
    lines = status_lines({**STATUS, "tenants": [_tenant(limited), _tenant(free)]})
    (small,) = [line for line in lines if "small" in line]
    assert "requests 2 of 4" in small and "blocks 7 (share 0.5)" in small and "tokens left -3 of 40, 5/s" in small
    assert small.endswith("rejected 9")
    (big,) = [line for line in lines if "big" in line]
    assert "of" not in big and "share" not in big and "tokens" not in big


def test_prediction_errors_are_shown_once_there_are_predictions() -> None:
    counters = {"ttft_predictions": 40.0, "ttft_prediction_error_p50": 0.04, "ttft_prediction_error_p90": 0.163}
    shown = _predictions(counters)
    assert list(shown) == ["ttft"]
    assert any(
        "ttft" in line and "4% (p50), 16% (p90), 40 requests" in line
        for line in status_lines({**STATUS, "predictions": shown})
    )
    assert _predictions({}) == {}


def test_blocks_that_are_out_of_use_are_told() -> None:
    blocks = {"total": 90, "free": 80, "cached": 3, "leaked": 0, "out_of_use": 10}
    (line,) = [line for line in status_lines({**STATUS, "blocks": blocks}) if line.startswith("blocks")]
    assert line.endswith("leaked 0  out of use for want of memory 10")
    (line,) = [line for line in status_lines({**STATUS, "blocks": {**blocks, "out_of_use": 0}}) if line[:6] == "blocks"]
    assert line.endswith("leaked 0")
