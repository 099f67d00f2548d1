"""Models, tokens, health, metrics, and what travels in headers."""

from __future__ import annotations

import json
from typing import Any

import prometheus_client
import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}


async def test_models(edge: Any) -> None:
    model = {
        "id": "smollm2",
        "created": 1_700_000_000,
        "max_model_len": 8192,
        "object": "model",
        "owned_by": "octavo",
    }
    assert (await edge.http.get("/v1/models")).json() == {"data": [model], "object": "list"}
    assert (await edge.http.get("/v1/models/smollm2")).json() == model
    unknown = await edge.http.get("/v1/models/org/other")
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "model")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/models", None),
        ("GET", "/v1/models/smollm2", None),
        ("POST", "/tokenize", {"prompt": "Hi"}),
        ("POST", "/detokenize", {"tokens": [72]}),
    ],
)
async def test_models_and_tokens_ask_for_the_key(edge: Any, method: str, path: str, body: Any) -> None:
    edge.gateway.api_key = "sk-1"
    refused = await edge.http.request(method, path, json=body)
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    answered = await edge.http.request(method, path, json=body, headers={"Authorization": "Bearer sk-1"})
    assert answered.status_code == 200
    for open_path in ("/health", "/ready", "/version", "/metrics"):
        assert (await edge.http.get(open_path)).status_code == 200


async def test_a_pause_after_the_turn(edge: Any) -> None:
    edge.gateway.decisions["turn-1"] = "keep"
    body = {"tool": "search", "expected_ms": 800}
    answer = await edge.http.post("/v1/requests/turn-1/pause", json=body)
    assert (answer.status_code, answer.json()) == (
        200,
        {"id": "turn-1", "decision": "keep", "object": "octavo.pause"},
    )
    assert (await edge.http.post("/v1/requests/turn-1/pause", json={})).status_code == 200
    assert edge.gateway.paused == [("turn-1", "search", 800), ("turn-1", "", 0)]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/requests/nobody/pause", {"tool": "t"}, 404, "id"),
        ("/v1/requests/turn-1/pause", {"tool": 7}, 400, "tool"),
        ("/v1/requests/turn-1/pause", {"tools": "t"}, 400, "body"),
        ("/v1/requests/turn-1/pause", {"expected_ms": -1}, 400, "expected_ms"),
        ("/v1/requests/turn-1/pause", {"expected_ms": "soon"}, 400, "expected_ms"),
    ],
)
async def test_a_bad_pause_names_what_is_wrong(
    edge: Any, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    answer = await edge.http.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert error["message"].startswith(param) or param == "body"


async def test_a_pause_asks_for_the_key(edge: Any) -> None:
    edge.gateway.api_key = "sk-1"
    assert (await edge.http.post("/v1/requests/turn-1/pause", json={})).status_code == 401


async def test_tokenize_a_prompt(edge: Any) -> None:
    response = await edge.http.post("/tokenize", json={"model": "smollm2", "prompt": "Hi", "return_token_strs": True})
    assert response.json() == {"count": 2, "max_model_len": 8192, "tokens": [72, 105], "token_strs": ["H", "i"]}
    assert edge.gateway.tokenized == [("Hi", None, False, None, True)]


async def test_tokenize_messages(edge: Any) -> None:
    body = {**BODY, "add_special_tokens": False, "add_generation_prompt": False}
    response = await edge.http.post("/tokenize", json=body)
    assert (response.json()["count"], response.json()["token_strs"]) == (5, None)
    (text, messages, special, add_bos, generation), *_ = edge.gateway.tokenized
    assert (text, messages[0].content, special, add_bos, generation) == (None, "Hello", False, False, False)


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", **BODY}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [49152]}, 400, "tokens[0]"),
    ],
)
async def test_bad_tokenize_bodies(edge: Any, path: str, body: dict[str, Any], status: int, param: str) -> None:
    response = await edge.http.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)
    assert response.json()["error"]["message"].startswith(f"{param}:") or status == 404


async def test_long_texts_are_tokenized_too_and_10_mb_are_refused(edge: Any) -> None:
    assert (await edge.http.post("/tokenize", json={"prompt": "x" * 100_000})).json()["count"] == 100_000
    assert (await edge.http.post("/tokenize", json={"prompt": "x" * 10_000_000})).status_code == 400
    assert (await edge.http.get("/health")).status_code == 200


async def test_detokenize(edge: Any) -> None:
    assert (await edge.http.post("/detokenize", json={"tokens": [72, 105]})).json() == {"prompt": "Hi"}


async def test_liveness_is_not_readiness(edge: Any) -> None:
    assert (await edge.http.get("/health")).status_code == 200
    assert (await edge.http.get("/ready")).json() == {"status": "ready"}
    edge.gateway.why_not_ready = "release gate: stops: because"
    assert (await edge.http.get("/health")).status_code == 200
    response = await edge.http.get("/ready")
    assert (response.status_code, response.json(), response.headers["retry-after"]) == (
        503,
        {"status": "release gate: stops: because"},
        "1",
    )


async def test_metrics_are_the_hosts(edge: Any) -> None:
    counter = prometheus_client.Counter("octavo_test_events", "test", registry=edge.host.metrics)
    counter.inc(3)
    response = await edge.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert "octavo_test_events_total 3.0" in response.text
    edge.host.metrics.unregister(counter)


async def test_version_and_urls(edge: Any) -> None:
    assert (await edge.http.get("/version")).json() == {"version": edge.host.version}
    assert edge.host.urls["http"] == edge.url
    assert edge.host.urls["metrics"] == f"{edge.url}/metrics"


async def test_headers_reach_the_gateway(edge: Any) -> None:
    parent = "00-" + "12" * 16 + "-" + "34" * 8 + "-01"
    headers = {
        "X-Request-Id": "my-id",
        "Idempotency-Key": "key-7",
        "Authorization": "Bearer secret",
        "traceparent": parent,
        "x-octavo-priority": "-3",
        "x-octavo-slo-class": "interactive",
        "x-octavo-deadline-ms": "1500",
        "x-octavo-cache": "off",
    }
    response = await edge.http.post(CHAT, json=BODY, headers=headers)
    params, context = edge.gateway.requests[0], edge.gateway.edges[0]
    assert (params.request_id, params.idempotency_key, params.priority) == ("my-id", "key-7", -3)
    assert (params.slo_class, params.deadline_ms, params.cache_off) == ("interactive", 1500, True)
    assert (context.edge, context.api_key, context.traceparent) == ("http", "secret", parent)
    assert response.headers["x-request-id"] == "my-id"
    assert response.headers["x-octavo-trace-id"] == "ab" * 16
    assert response.json()["id"] == "chatcmpl-my-id"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_urgency_and_class_may_stand_in_the_body(edge: Any, path: str) -> None:
    body = {**BODY, "prompt": "Once", "priority": -7, "slo_class": "batch"}
    assert (await edge.http.post(path, json=body)).status_code == 200
    same = {"x-octavo-priority": "-7", "x-octavo-slo-class": "batch"}
    assert (await edge.http.post(path, json=body, headers=same)).status_code == 200
    assert [(item.priority, item.slo_class) for item in edge.gateway.requests] == [(-7, "batch")] * 2


@pytest.mark.parametrize(
    ("headers", "field"), [({"x-octavo-priority": "1"}, "priority"), ({"x-octavo-slo-class": "chat"}, "slo_class")]
)
async def test_a_header_and_the_body_must_not_contradict(edge: Any, headers: dict[str, str], field: str) -> None:
    response = await edge.http.post(CHAT, json={**BODY, "priority": 2, "slo_class": "batch"}, headers=headers)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == field and "send one of them" in error["message"]
    assert not edge.gateway.requests


async def test_without_headers_nothing_is_made_up(edge: Any) -> None:
    response = await edge.http.post(CHAT, json=BODY)
    params, context = edge.gateway.requests[0], edge.gateway.edges[0]
    assert (params.request_id, params.idempotency_key, params.priority, params.slo_class) == ("", "", 0, "")
    assert (params.deadline_ms, params.cache_off, context.api_key, context.traceparent) == (0, False, "", "")
    assert (params.max_tokens, params.temperature, params.seed, params.n) == (None, None, None, None)
    assert response.headers["x-request-id"] == "req-0"


async def test_several_prompts_get_ids_of_their_own(edge: Any) -> None:
    headers = {"X-Request-Id": "id", "Idempotency-Key": "key"}
    response = await edge.http.post("/v1/completions", json={"prompt": ["a", "b"]}, headers=headers)
    assert [item.request_id for item in edge.gateway.requests] == ["id-0", "id-1"]
    assert [item.idempotency_key for item in edge.gateway.requests] == ["key-0", "key-1"]
    assert response.headers["x-request-id"] == "id"
    assert response.json()["id"] == "cmpl-id"


async def test_sse_headers_and_framing(edge: Any) -> None:
    response = await edge.http.post(CHAT, json={**BODY, "stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"] == "req-0"
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(event.removeprefix("data: "))["object"] == "chat.completion.chunk" for event in events[:-2])


async def test_connections_are_kept(edge: Any) -> None:
    first = await edge.http.post(CHAT, json={**BODY, "stream": True})
    second = await edge.http.post(CHAT, json={"messages": 5})
    third = await edge.http.post(CHAT, json=BODY)
    streams = {item.extensions["network_stream"].get_extra_info("client_addr") for item in (first, second, third)}
    assert len(streams) == 1


async def test_echo_comes_first_and_offsets_count_it(edge: Any, make: Any) -> None:
    from octavo_gateway.requests import Delta

    edge.gateway.script = lambda params: [
        Delta(0, "Once: ", [], [], 0, 0),
        *make.deltas(["é", "!"], logprobs=0),
        make.finished(),
    ]
    body = {"prompt": "Once: ", "echo": True, "logprobs": 0}
    choice = (await edge.http.post("/v1/completions", json=body)).json()["choices"][0]
    assert edge.gateway.requests[0].echo is True
    assert choice["text"] == "Once: é!"
    assert choice["logprobs"]["tokens"] == ["é", "!"]
    assert choice["logprobs"]["text_offset"] == [6, 7]
    streamed = (await edge.http.post("/v1/completions", json={**body, "stream": True})).text
    offsets = [
        offset
        for event in streamed.split("\n\n")[:-2]
        for offset in json.loads(event[6:])["choices"][0]["logprobs"]["text_offset"]
    ]
    assert offsets == [6, 7]


async def test_stop_reason_is_told(edge: Any, make: Any) -> None:
    from octavo_gateway.requests import Delta

    edge.gateway.script = lambda params: [Delta(0, "a", [1], [], 1, 1, "stop", "END"), make.finished()]
    choice = (await edge.http.post(CHAT, json={**BODY, "stop": "END"})).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "END")


@pytest.mark.parametrize(("path", "asked"), [(CHAT, BODY), ("/v1/completions", {"prompt": "a"})])
async def test_a_streamed_beam_tells_what_a_whole_one_does(edge: Any, make: Any, path: str, asked: Any) -> None:
    """`octavo_beam` of each choice, in the chunk that ends it and in no other."""
    from octavo_gateway.requests import BeamScore

    def script(params: Any) -> list[Any]:
        tracks = [make.deltas(["a", "b"], index) for index in range(2)]
        for index, track in enumerate(tracks):
            track[-1].beam = BeamScore(-0.5 - index, -1.0)
        return [*(delta for step in zip(*tracks, strict=True) for delta in step), make.finished()]

    edge.gateway.script = script
    body = {**asked, "use_beam_search": True, "n": 2}
    told = [{"score": -0.5 - index, "cumulative_logprob": -1.0} for index in range(2)]
    whole = (await edge.http.post(path, json=body)).json()["choices"]
    assert [choice["octavo_beam"] for choice in whole] == told
    streamed = (await edge.http.post(path, json={**body, "stream": True})).text
    chunks = [json.loads(event[6:])["choices"][0] for event in streamed.split("\n\n")[:-2]]
    assert {chunk["index"]: chunk["octavo_beam"] for chunk in chunks if chunk["finish_reason"]} == dict(enumerate(told))
    assert all("octavo_beam" not in chunk for chunk in chunks if not chunk["finish_reason"]) and len(chunks) == 4
