"""Every bad body gets 400 (or its own status) with the field's name, and the next request is answered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from octavo.errors import InvalidRequest, OctavoError

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"
HELLO = {"role": "user", "content": "Hello"}


async def refuse(edge: Any, path: str, content: bytes, status: int, param: str | None, **headers: str) -> str:
    """Posts, checks status and param, checks that nothing was submitted and that the edge goes on; returns the message."""
    before = len(edge.gateway.requests)
    response = await edge.http.post(path, content=content, headers={"content-type": "application/json", **headers})
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert error["type"] == "invalid_request_error"
    assert len(edge.gateway.requests) == before
    good = await edge.http.post(CHAT, json={"messages": [HELLO]})
    assert good.status_code == 200
    return str(error["message"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": [1]}, "top_p"),
        ({"n": "two"}, "n"),
        ({"n": 1.5}, "n"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 8, "max_completion_tokens": 9}, "max_tokens"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"stop_token_ids": "5"}, "stop_token_ids"),
        ({"seed": "x"}, "seed"),
        ({"logit_bias": {"AI": -100}}, "logit_bias"),
        ({"logit_bias": {"5": "much"}}, "logit_bias"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"model": 5}, "model"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [HELLO, {"role": 5, "content": "hi"}]}, "messages[1].role"),
        ({"messages": [HELLO, "hi"]}, "messages[1]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls[0].function"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "web", "function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools[0].function.strict"),
        (
            {"tools": [{"type": "function", "function": {"name": "f"}}], "parallel_tool_calls": False},
            "parallel_tool_calls",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"type": "x", "function": {"name": "f", "arguments": "{}"}}]}
                ]
            },
            "messages[0].tool_calls[0].type",
        ),
    ],
)
async def test_wrong_types_in_chat_name_the_field(edge: Any, fields: dict[str, Any], param: str) -> None:
    await refuse(edge, CHAT, json.dumps({"messages": [HELLO], **fields}).encode(), 400, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [[1, "a"]]}, "prompt[0][1]"),
        ({"prompt": ["a"] * 257}, "prompt"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": "no"}, "echo"),
    ],
)
async def test_wrong_types_in_completions_name_the_field(edge: Any, fields: dict[str, Any], param: str) -> None:
    await refuse(edge, PLAIN, json.dumps({"prompt": "Once", **fields}).encode(), 400, param)


@pytest.mark.parametrize(
    ("content", "param", "words"),
    [
        (b"", "body", "empty"),
        (b"{", "body", "malformed JSON"),
        (b'{"messages": [', "body", "malformed JSON"),
        (b"nonsense", "body", "malformed JSON"),
        (b"[]", "body", "expected object"),
        (b"null", "body", "expected object"),
        (b"{}", "messages", "required"),
        (b'{"messages": [], "temperature": NaN}', "temperature", "malformed JSON"),
        (b'{"messages": [], "top_p": -Infinity}', "top_p", "malformed JSON"),
        (b'{"messages": [], "temperature": 1e999}', "temperature", "out of range"),
        (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', "messages", "UTF-8"),
        (b'{"messages": [], "never_heard_of": "\xff"}', "never_heard_of", "UTF-8"),
        (b"\xff\xfe{}", "body", "UTF-8"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "messages", "malformed JSON"),
        (b'{"messages": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "messages[0]", "expected object"),
        (b'{"messages": [], "x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "body", "nested too deeply"),
        (b'{"messages": [], "tools": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}", "tools", "expected"),
        (b"[" * 10_000, "body", ""),
    ],
)
async def test_broken_json(edge: Any, content: bytes, param: str, words: str) -> None:
    assert words in await refuse(edge, CHAT, content, 400, param)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (PLAIN, {"suffix": "end"}, "suffix"),
        (PLAIN, {"best_of": 2}, "best_of"),
        (PLAIN, {"prompt_logprobs": 0}, "prompt_logprobs"),
        (CHAT, {"functions": [{}]}, "functions"),
        (CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        (CHAT, {"response_format": "json"}, "response_format"),
        (PLAIN, {"response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {"structured_outputs": {"json": {}}}, "structured_outputs"),
        (CHAT, {"guided_regex": "a+"}, "guided_regex"),
        (CHAT, {"allowed_token_ids": []}, "allowed_token_ids"),
        (CHAT, {"allowed_token_ids": list(range(2000))}, "allowed_token_ids"),
        (CHAT, {"reasoning_effort": "high"}, "reasoning_effort"),
        (CHAT, {"modalities": ["text", "audio"]}, "modalities"),
        (CHAT, {"chat_template": "{{ x }}"}, "chat_template"),
        (CHAT, {"continue_final_message": True}, "continue_final_message"),
        (CHAT, {"best_of": 2}, "best_of"),
        (CHAT, {"length_penalty": True}, "length_penalty"),
        (CHAT, {"store": True}, "store"),
    ],
)
async def test_known_but_unserved_fields_are_refused(edge: Any, path: str, fields: dict[str, Any], param: str) -> None:
    body = {"messages": [HELLO], "prompt": "Once", **fields}
    message = await refuse(edge, path, json.dumps(body).encode(), 400, param)
    assert message.startswith(param)


async def test_harmless_and_unknown_fields_are_taken(edge: Any) -> None:
    body = {
        "messages": [HELLO],
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "length_penalty": 1.0,
        "store": False,
        "user": "u",
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "never_heard_of": {"x": [1, 2]},
        "temperature": None,
        "stop": None,
        "priority": 0,
    }
    assert (await edge.http.post(CHAT, json=body)).status_code == 200
    body = {"prompt": "Once", "suffix": None, "best_of": None, "response_format": None}
    assert (await edge.http.post(PLAIN, json=body)).status_code == 200


@pytest.mark.parametrize(
    ("error", "path", "body", "status", "param"),
    [
        (InvalidRequest("max_tokens: 0 is too small", field="max_tokens"), CHAT, {}, 400, "max_tokens"),
        (
            InvalidRequest("max_tokens: 0 is too small", field="max_tokens"),
            CHAT,
            {"max_completion_tokens": 0},
            400,
            "max_completion_tokens",
        ),
        (InvalidRequest("x", field="prompt_ids[3]"), PLAIN, {}, 400, "prompt[3]"),
        (InvalidRequest("x", field="prompt_text"), PLAIN, {}, 400, "prompt"),
        (InvalidRequest("x", field="logprobs"), CHAT, {"logprobs": True, "top_logprobs": 99}, 400, "top_logprobs"),
        (InvalidRequest("x", field="logprobs"), PLAIN, {"logprobs": 99}, 400, "logprobs"),
        (InvalidRequest("x", field="sampling.logit_bias[49152]"), PLAIN, {}, 400, "logit_bias[49152]"),
        (InvalidRequest("x", field="include_stop_str"), PLAIN, {}, 400, "include_stop_str_in_output"),
        (InvalidRequest("x", field="deadline_ms"), PLAIN, {}, 400, "deadline_ms"),
    ],
)
async def test_what_the_gateway_refuses_carries_the_clients_name(
    edge: Any, error: OctavoError, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    edge.gateway.refusal = error
    response = await edge.http.post(path, json={"messages": [HELLO], "prompt": "Once", **body})
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)
    if "max_tokens" in error.message:
        assert response.json()["error"]["message"] == f"{param}: 0 is too small"


@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        ({"temperature": -1}, "temperature", -1.0),
        ({"top_p": 0}, "top_p", 0.0),
        ({"top_k": -2}, "top_k", -2),
        ({"min_p": 2}, "min_p", 2.0),
        ({"n": 0}, "n", 0),
        ({"max_tokens": 0}, "max_tokens", 0),
        ({"max_tokens": 2**31}, "max_tokens", 2**31),
        ({"max_completion_tokens": -1}, "max_tokens", -1),
        ({"seed": 2**63}, "seed", 2**63),
        ({"seed": -1}, "seed", -1),
        ({"stop": ""}, "stop", [""]),
        ({"stop": ["x"] * 10_000}, "stop", ["x"] * 10_000),
        ({"logit_bias": {"49152": 5, "-1": 1}}, "logit_bias", {49152: 5.0, -1: 1.0}),
        ({"stop_token_ids": [151645]}, "stop_token_ids", [151645]),
        ({"model": "gpt-9"}, "model", "gpt-9"),
        ({"min_tokens": 3}, "min_tokens", 3),
        ({"ignore_eos": True}, "ignore_eos", True),
        ({"include_stop_str_in_output": True}, "include_stop_str", True),
        ({"skip_special_tokens": False}, "skip_special_tokens", False),
        ({"repetition_penalty": 0}, "repetition_penalty", 0.0),
        ({"cache_salt": "s"}, "cache_salt", "s"),
        ({"pause": {"tool": "search", "expected_ms": 800}}, "pause_expected_ms", 800),
        ({"pause": {"tool": "search"}}, "pause_tool", "search"),
        ({"resumes": "turn-1"}, "resumes", "turn-1"),
    ],
)
async def test_values_reach_the_one_admission_as_sent(
    edge: Any, fields: dict[str, Any], attribute: str, value: Any
) -> None:
    edge.gateway.refusal = InvalidRequest("judged inside", field="somewhere")
    response = await edge.http.post(CHAT, json={"messages": [HELLO], **fields})
    assert response.status_code == 400
    assert getattr(edge.gateway.requests[-1], attribute) == value


async def test_text_parts_are_joined_and_null_is_an_empty_assistant(edge: Any) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "user", "content": parts, "name": "me"}, {"role": "assistant", "content": None}]
    assert (await edge.http.post(CHAT, json={"messages": messages})).status_code == 200
    user, assistant = edge.gateway.requests[-1].messages
    assert (user.role, user.content, user.name) == ("user", "Hello", "me")
    assert (assistant.role, assistant.content) == ("assistant", "")


async def test_a_body_over_the_limit_is_answered_unread(edge: Any, make: Any) -> None:
    big = b'{"prompt": "' + b"x" * 10_000_000 + b'"}'
    message = await refuse(edge, PLAIN, big, 400, "body")
    assert str(make.max_body_bytes) in message


async def test_a_chunked_body_over_the_limit_is_cut(edge: Any, make: Any) -> None:
    async def body() -> Any:
        for _ in range(40):
            yield b" " * 10_000

    response = await edge.http.post(PLAIN, content=body(), headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert (await edge.http.get("/health")).status_code == 200


async def test_a_body_at_the_limit_is_read(edge: Any, make: Any) -> None:
    frame = len(b'{"prompt": ""}')
    body = b'{"prompt": "' + b"x" * (make.max_body_bytes - frame) + b'"}'
    response = await edge.http.post(PLAIN, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 200
    assert len(edge.gateway.requests[-1].prompt_text) == make.max_body_bytes - frame


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_only_json_is_read(edge: Any, kind: str) -> None:
    response = await edge.http.post(CHAT, content=b'{"messages": []}', headers={"content-type": kind})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "Content-Type")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Request-Id", "a b"),
        ("X-Request-Id", "x" * 129),
        ("Idempotency-Key", 'a"b'),
        ("X-Octavo-Priority", "high"),
        ("X-Octavo-Deadline-Ms", "0"),
        ("X-Octavo-Deadline-Ms", "-5"),
        ("X-Octavo-Deadline-Ms", "1e3"),
        ("X-Octavo-Cache", "maybe"),
        ("Content-Encoding", "gzip"),
    ],
)
async def test_bad_headers_are_named(edge: Any, name: str, value: str) -> None:
    await refuse(edge, CHAT, json.dumps({"messages": [HELLO]}).encode(), 400, name, **{name: value})
