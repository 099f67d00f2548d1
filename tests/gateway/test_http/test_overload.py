"""What overload looks like over HTTP: hints when to come back, deadlines in the body, and a request that was degraded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from octavo.errors import DeadlineExceeded, Overloaded

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY: dict[str, Any] = {"prompt": "Hello", "max_tokens": 4}
COMPLETIONS = "/v1/completions"


@pytest.mark.parametrize(
    ("error", "status", "hint"),
    [
        (Overloaded("late", reason="rejected-overload", retry_after_s=2.2), 429, "3"),
        (DeadlineExceeded("late", reason="rejected-deadline", retry_after_s=0.4), 504, "1"),
        (DeadlineExceeded("too late", reason="evicted-deadline"), 504, None),
    ],
)
async def test_retry_after_is_there_where_waiting_helps(
    edge: Any, error: Exception, status: int, hint: str | None
) -> None:
    edge.gateway.refusal = error
    response = await edge.http.post(COMPLETIONS, json=BODY)
    assert (response.status_code, response.headers.get("retry-after")) == (status, hint)


async def test_a_deadline_comes_in_the_body_or_in_the_header_but_not_two(edge: Any) -> None:
    await edge.http.post(COMPLETIONS, json={**BODY, "deadline_ms": 1500})
    assert edge.gateway.requests[-1].deadline_ms == 1500
    await edge.http.post(COMPLETIONS, json=BODY, headers={"X-Octavo-Deadline-Ms": "700"})
    assert edge.gateway.requests[-1].deadline_ms == 700
    both = await edge.http.post(
        COMPLETIONS, json={**BODY, "deadline_ms": 1500}, headers={"X-Octavo-Deadline-Ms": "700"}
    )
    assert both.status_code == 400 and both.json()["error"]["param"] == "deadline_ms"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_degraded_request_is_announced_in_header_and_body(edge: Any, make: Any, stream: bool) -> None:
    edge.gateway.degraded = "pool=cheap max_tokens=2"
    edge.gateway.script = lambda params: [*make.deltas(["a", "b"]), make.finished()]
    response = await edge.http.post(COMPLETIONS, json={**BODY, "stream": stream})
    assert response.headers["x-octavo-degraded"] == "pool=cheap max_tokens=2"
    text = response.text.split("\n\n")[0].removeprefix("data: ") if stream else response.text
    assert json.loads(text)["octavo_degraded"] == "pool=cheap max_tokens=2"
    edge.gateway.degraded = ""
    plain = await edge.http.post(COMPLETIONS, json=BODY)
    assert "x-octavo-degraded" not in plain.headers and "octavo_degraded" not in plain.json()
