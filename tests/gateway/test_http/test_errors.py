"""Statuses, error bodies, Retry-After, and failures that must not look like success."""

from __future__ import annotations

import json
from typing import Any

import pytest
from octavo.errors import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    FeatureOff,
    InternalError,
    NeverFits,
    OctavoError,
    Overloaded,
    Unauthenticated,
    Unavailable,
    UnknownModel,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
ALL: list[tuple[OctavoError, int, str]] = [
    (NeverFits("too long", field="messages"), 400, "invalid_request_error"),
    (FeatureOff("off"), 400, "invalid_request_error"),
    (Unauthenticated("no such key"), 401, "authentication_error"),
    (UnknownModel("model: 'x' is not served", field="model"), 404, "invalid_request_error"),
    (AlreadyExists("other body"), 409, "invalid_request_error"),
    (Overloaded("queue is full", retry_after_s=2.2), 429, "rate_limit_error"),
    (Cancelled("cancelled by the operator"), 499, "cancelled_error"),
    (InternalError("bug"), 500, "server_error"),
    (Unavailable("no worker"), 503, "service_unavailable_error"),
    (DeadlineExceeded("too late"), 504, "timeout_error"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("where", ["start", "before the first token"])
@pytest.mark.parametrize(("error", "status", "kind"), ALL, ids=lambda item: type(item).__name__)
async def test_failures_before_the_first_token_have_their_status(
    edge: Any, error: OctavoError, status: int, kind: str, where: str, stream: bool
) -> None:
    if where == "start":
        edge.gateway.refusal = error
    else:
        edge.gateway.script = lambda params: [error]
    response = await edge.http.post(CHAT, json={**BODY, "stream": stream}, headers={"x-request-id": "mine"})
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"] == "mine"
    assert response.json() == {
        "error": {"message": error.message, "type": kind, "param": error.field or None, "code": error.reason}
    }
    assert response.headers.get("retry-after") == {429: "3", 503: "1"}.get(status)
    assert response.headers.get("x-should-retry") == ("false" if status == 409 else None)


@pytest.mark.parametrize("error", [item[0] for item in ALL], ids=lambda item: type(item).__name__)
async def test_failure_in_mid_stream_is_an_error_event_and_no_done(edge: Any, make: Any, error: OctavoError) -> None:
    edge.gateway.script = lambda params: [*make.deltas(["a", "b"], finish=None), error]
    response = await edge.http.post(CHAT, json={**BODY, "stream": True})
    assert response.status_code == 200
    events = [line for line in response.text.split("\n\n") if line]
    assert all(event.startswith("data: ") for event in events)
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == error.reason
    assert len(events) == 3
    assert "[DONE]" not in response.text
    assert '"finish_reason":"stop"' not in response.text


async def test_failure_in_the_middle_of_a_whole_answer_gives_no_partial_text(edge: Any, make: Any) -> None:
    edge.gateway.script = lambda params: [*make.deltas(["a", "b"], finish=None), Unavailable("worker lost")]
    response = await edge.http.post(CHAT, json=BODY)
    assert (response.status_code, response.json()["error"]["message"]) == (503, "worker lost")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_bug_is_a_500_or_an_error_event_never_success(edge: Any, make: Any, stream: bool) -> None:
    edge.gateway.script = lambda params: [*make.deltas(["a"], finish=None), ZeroDivisionError("oops")]
    response = await edge.http.post(CHAT, json={**BODY, "stream": stream})
    assert response.status_code == (200 if stream else 500)
    assert "[DONE]" not in response.text
    assert '"code":"internal"' in response.text
    assert "oops" not in response.text
    assert edge.gateway.generations[0].closed == ["failed"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stream_without_an_outcome_is_a_failure(edge: Any, make: Any, stream: bool) -> None:
    edge.gateway.script = lambda params: make.deltas(["a", "b"])
    response = await edge.http.post(CHAT, json={**BODY, "stream": stream})
    assert "[DONE]" not in response.text
    assert "without an outcome" in response.text


async def test_one_failed_prompt_ends_its_siblings(edge: Any, make: Any) -> None:
    import asyncio

    def script(params: Any) -> Any:
        if params.prompt_text == "bad":
            return [*make.deltas(["a"], finish=None), Unavailable("worker lost")]
        return [*make.deltas(["b"], finish=None), asyncio.Event()]

    edge.gateway.script = script
    response = await edge.http.post("/v1/completions", json={"prompt": ["good", "bad", "good"], "stream": True})
    assert "worker lost" in response.text
    assert "[DONE]" not in response.text
    assert [item.closed for item in edge.gateway.generations] == [["failed"]] * 3


async def test_a_refused_prompt_ends_those_already_started(edge: Any, make: Any) -> None:
    import asyncio

    def script(params: Any) -> Any:
        edge.gateway.refusal = Overloaded("queue is full")
        return [asyncio.Event()]

    edge.gateway.script = script
    response = await edge.http.post("/v1/completions", json={"prompt": ["a", "b"]})
    assert response.status_code == 429
    assert [item.closed for item in edge.gateway.generations] == [["failed"]]


async def test_unknown_urls_and_methods(edge: Any) -> None:
    response = await edge.http.get("/v1/nothing")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "unknown_url")
    response = await edge.http.get(CHAT)
    assert (response.status_code, response.json()["error"]["code"]) == (405, "method_not_allowed")
    assert "POST" in response.headers["allow"]
    response = await edge.http.post("/health")
    assert response.status_code == 405
