"""Errors name fields as their API does: over all fields of a request, in the message and in the violation."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import octavo_gateway
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from octavo.errors import FieldName, OctavoError, UnknownModel
from octavo.v1 import inference_pb2 as pb
from octavo_gateway.admission import Admission, Limits
from octavo_gateway.http.bodies import CacheBody, ChatBody, CompletionBody, Message, PauseBody, ToolBody, decode_body
from octavo_gateway.http.edge import read_headers
from octavo_gateway.http.names import RENAMED, in_clients_words
from octavo_gateway.http.params import chat_params, completion_params
from octavo_gateway.inference_wire import chat_params as rpc_chat_params
from octavo_gateway.inference_wire import generate_params
from octavo_gateway.requests import RequestParams
from octavo_gateway.rich_status import in_rpcs_words
from starlette.datastructures import Headers

LIMITS = Limits(root_key=b"r" * 32, block_tokens=16, max_model_len=256, max_choices=16)
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
RPC_TOOL = {"name": "f", "parameters": "{}"}
HEADERS = (
    "X-Request-Id",
    "Idempotency-Key",
    "X-Octavo-Priority",
    "X-Octavo-Slo-Class",
    "X-Octavo-Deadline-Ms",
    "X-Octavo-Cache",
)

HTTP: list[tuple[str, dict[str, Any], dict[str, str], str]] = [
    # field of RequestParams, body, headers, how the message begins and what else it names
    ("model", {"model": "x"}, {}, "model: "),
    ("prompt_text", {"prompt": ""}, {}, "prompt: "),
    ("prompt_ids", {"prompt": [60000]}, {}, "prompt[0]: "),
    ("messages", {"messages": [{"role": "x", "content": "a"}]}, {}, "messages[0].role: "),
    ("messages", {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "", "arguments": ""}}]}]}, {},
     "messages[0].tool_calls[0].function.name: "),
    ("add_generation_prompt", {"tools": [TOOL], "tool_choice": "required", "add_generation_prompt": False}, {},
     "tool_choice: 'required' begins an answer; leave add_generation_prompt out"),
    ("tools", {"tools": [TOOL, TOOL]}, {}, "tools[1].function.name: "),
    ("tool_choice", {"tool_choice": "x"}, {}, "tool_choice: "),
    ("temperature", {"temperature": -1}, {}, "temperature: "),
    ("top_p", {"top_p": 2}, {}, "top_p: "),
    ("top_k", {"top_k": -2}, {}, "top_k: "),
    ("min_p", {"min_p": 2}, {}, "min_p: "),
    ("presence_penalty", {"presence_penalty": 3}, {}, "presence_penalty: "),
    ("frequency_penalty", {"frequency_penalty": 3}, {}, "frequency_penalty: "),
    ("repetition_penalty", {"repetition_penalty": -1}, {}, "repetition_penalty: "),
    ("logit_bias", {"logit_bias": {"5": 200}}, {}, "logit_bias[5]: "),
    ("seed", {"seed": -1}, {}, "seed: "),
    ("max_tokens", {"max_tokens": 0}, {}, "max_tokens: "),
    ("max_tokens", {"max_completion_tokens": 0}, {}, "max_completion_tokens: "),
    ("min_tokens", {"min_tokens": 9, "max_tokens": 3}, {}, "min_tokens: 9 is more than max_tokens (3)"),
    ("min_tokens", {"min_tokens": 9, "max_completion_tokens": 3}, {}, "min_tokens: 9 is more than max_completion_tokens (3)"),
    ("stop", {"stop": [""]}, {}, "stop[0]: "),
    ("stop_token_ids", {"stop_token_ids": [-1]}, {}, "stop_token_ids[0]: "),
    ("n", {"n": 99}, {}, "n: "),
    ("logprobs", {"prompt": "a", "logprobs": 99}, {}, "logprobs: "),
    ("logprobs", {"logprobs": True, "top_logprobs": 99}, {}, "top_logprobs: "),
    ("beam_width", {"use_beam_search": True, "n": 11}, {}, "n: 11 is"),
    ("beam_width", {"use_beam_search": True, "best_of": 11}, {}, "best_of: 11 is"),
    ("length_penalty", {"length_penalty": 2}, {}, "length_penalty: only a beam search takes it; set use_beam_search, or"),
    ("early_stopping", {"early_stopping": True}, {}, "early_stopping: only a beam search takes it; set use_beam_search, or"),
    ("request_id", {}, {"X-Request-Id": "a b"}, "X-Request-Id: "),
    ("idempotency_key", {}, {"Idempotency-Key": "a b"}, "Idempotency-Key: "),
    ("priority", {"priority": 2**40}, {}, "priority: "),
    ("priority", {"priority": 1}, {"X-Octavo-Priority": "2"}, "priority: 1 differs from 2 of X-Octavo-Priority"),
    ("slo_class", {"slo_class": "a b"}, {}, "slo_class: "),
    ("deadline_ms", {"deadline_ms": -1}, {}, "deadline_ms: "),
    ("cache_off", {"cache": {"off": True, "ttl": 3}}, {}, "cache.ttl: means nothing when cache.off is set"),
    ("cache_off", {"cache": {"ttl": 3}}, {"X-Octavo-Cache": "off"}, "cache.ttl: means nothing when X-Octavo-Cache is set"),
    ("cache_salt", {"cache_salt": "a", "cache": {"salt": "b"}}, {}, "cache.salt: differs from cache_salt"),
    ("cache_ttl_s", {"cache": {"ttl": -1}}, {}, "cache.ttl: "),
    ("cache_pin", {"cache": {"pin": True}}, {}, "cache.pin: needs cache.ttl, "),
    ("cache_priority", {"cache": {"priority": 99}}, {}, "cache.priority: "),
    ("cache_tiers", {"cache": {"tiers": ["dram"]}}, {}, "cache.tiers: hbm is where KV is computed; include it, or send cache.off"),
    ("cache_preload", {"cache": {"preload": "/"}}, {}, "cache.preload: "),
    ("cache_chunks", {"cache": {"chunks": ["a"], "preload": "b"}}, {}, "cache.chunks: stands beside cache.preload; "),
    ("pause_tool", {"pause": {"tool": "a b"}}, {}, "pause.tool: "),
    ("pause_expected_ms", {"pause": {"expected_ms": -1}}, {}, "pause.expected_ms: "),
    ("resumes", {"resumes": "a b"}, {}, "resumes: "),
]  # fmt: skip

RPC: list[tuple[str, dict[str, Any], str]] = [
    ("model", {"context": {"model": "x"}}, "model: "),
    ("prompt_text", {"text": ""}, "prompt: "),
    ("prompt_ids", {"tokenIds": {"ids": [60000]}}, "prompt[0]: "),
    ("messages", {"messages": [{"role": "x", "content": "a"}]}, "messages[0].role: "),
    ("messages", {"messages": [{"role": "assistant", "toolCalls": [{"name": ""}]}]}, "messages[0].tool_calls[0].name: "),
    ("add_generation_prompt", {"tools": [RPC_TOOL], "toolChoice": "required", "addGenerationPrompt": False},
     "tool_choice: 'required' begins an answer; leave add_generation_prompt out"),
    ("tools", {"tools": [RPC_TOOL, RPC_TOOL]}, "tools[1].name: "),
    ("tools", {"tools": [{"name": "f", "parameters": "x"}]}, "tools[0].parameters: "),
    ("tool_choice", {"toolChoice": "x"}, "tool_choice: "),
    ("temperature", {"sampling": {"temperature": -1}}, "temperature: "),
    ("top_p", {"sampling": {"topP": 2}}, "top_p: "),
    ("top_k", {"sampling": {"topK": -2}}, "top_k: "),
    ("min_p", {"sampling": {"minP": 2}}, "min_p: "),
    ("presence_penalty", {"sampling": {"presencePenalty": 3}}, "presence_penalty: "),
    ("frequency_penalty", {"sampling": {"frequencyPenalty": 3}}, "frequency_penalty: "),
    ("repetition_penalty", {"sampling": {"repetitionPenalty": -1}}, "repetition_penalty: "),
    ("logit_bias", {"sampling": {"logitBias": {"5": 200}}}, "logit_bias[5]: "),
    ("max_tokens", {"options": {"maxTokens": 0}}, "max_tokens: "),
    ("min_tokens", {"options": {"minTokens": 9, "maxTokens": 3}}, "min_tokens: 9 is more than max_tokens (3)"),
    ("stop", {"options": {"stop": [""]}}, "stop[0]: "),
    ("stop_token_ids", {"options": {"stopTokenIds": [-1]}}, "stop_token_ids[0]: "),
    ("n", {"options": {"n": 99}}, "n: "),
    ("n", {"options": {"n": 5, "beamWidth": 4}}, "n: 5 beams of 4 cannot come back; use at most beam_width (4)"),
    ("logprobs", {"options": {"logprobs": 99}}, "logprobs: "),
    ("echo", {"options": {"echo": True}}, "echo: "),
    ("beam_width", {"options": {"beamWidth": 11}}, "beam_width: 11 is"),
    ("length_penalty", {"options": {"lengthPenalty": 2}}, "length_penalty: only a beam search takes it; set beam_width, or"),
    ("early_stopping", {"options": {"earlyStopping": True}}, "early_stopping: only a beam search takes it; set beam_width, or"),
    ("request_id", {"context": {"requestId": "a b"}}, "request_id: "),
    ("idempotency_key", {"context": {"idempotencyKey": "a b"}}, "idempotency_key: "),
    ("slo_class", {"context": {"sloClass": "a b"}}, "slo_class: "),
    ("cache_off", {"context": {"cacheOff": True, "cache": {"ttl": 3}}}, "cache.ttl: means nothing when cache.off is set"),
    ("cache_salt", {"context": {"cacheSalt": "a", "cache": {"salt": "b"}}}, "cache.salt: differs from cache_salt"),
    ("cache_ttl_s", {"context": {"cache": {"ttl": -1}}}, "cache.ttl: "),
    ("cache_pin", {"context": {"cache": {"pin": True}}}, "cache.pin: needs cache.ttl, "),
    ("cache_priority", {"context": {"cache": {"priority": 99}}}, "cache.priority: "),
    ("cache_tiers", {"context": {"cache": {"tiers": ["x"]}}}, "cache.tiers: "),
    ("cache_preload", {"context": {"cache": {"preload": "/"}}}, "cache.preload: "),
    ("cache_chunks", {"context": {"cache": {"chunks": ["a"], "preload": "b"}}}, "cache.chunks: stands beside cache.preload; "),
    ("pause_tool", {"context": {"pause": {"tool": "a b"}}}, "pause.tool: "),
    ("resumes", {"context": {"resumes": "a b"}}, "resumes: "),
]  # fmt: skip

ANY_VALUE = {"kind", "ignore_eos", "include_stop_str", "skip_special_tokens"}
"""No value of these is refused."""
ONE_API_ONLY = {"http": {"echo"}, "rpc": {"seed", "priority", "deadline_ms", "pause_expected_ms"}}
"""Refused over one API alone: the other's type has no wrong value, or no place, for it."""


def refused_over_http(admission: Admission, body: dict[str, Any], headers: dict[str, str]) -> OctavoError:
    """As the endpoints do it."""
    plain = "prompt" in body
    raw = json.dumps(body if plain else {"messages": HELLO, **body}).encode()
    read = named = None
    with pytest.raises(OctavoError) as caught:
        named = read_headers(Headers(headers))
        read = decode_body(raw, CompletionBody if plain else ChatBody)
        params = completion_params(read)[0] if isinstance(read, CompletionBody) else chat_params(read)
        judge(admission, named.apply(params))
    return in_clients_words(caught.value, read, named)


def refused_over_rpc(admission: Admission, request: dict[str, Any]) -> OctavoError:
    plain = "text" in request or "tokenIds" in request
    with pytest.raises(OctavoError) as caught:
        if plain:
            params = generate_params(json_format.ParseDict(request, pb.GenerateRequest()))
        else:
            params = rpc_chat_params(json_format.ParseDict({"messages": HELLO, **request}, pb.ChatRequest()))
        judge(admission, params)
    return in_rpcs_words(caught.value)


def judge(admission: Admission, params: RequestParams) -> None:
    admission.check(params, LIMITS)
    admission.admit(params, admission.encode(params), "default", None, LIMITS)


def names_in(error: OctavoError) -> list[str]:
    """Every field that it names, without places in lists."""
    named = [part for part in error._parts if isinstance(part, FieldName)]
    return [re.sub(r"\[[^]]*\]", "", name) for name in (*named, *(item.field for item in error.violations))]


def paths_of(kind: type[msgspec.Struct], inner: dict[str, type[msgspec.Struct]]) -> set[str]:
    names = {item.name for item in msgspec.structs.fields(kind)}
    return names | {f"{name}.{path}" for name in names if name in inner for path in paths_of(inner[name], inner)}


def rpc_paths(kind: Descriptor) -> set[str]:
    found = {item.name for item in kind.oneofs}
    for field in kind.fields:
        found.add(field.name)
        if field.message_type is not None and field.message_type.file is kind.file:
            inner = rpc_paths(field.message_type)
            found |= inner if field.name in ("sampling", "options", "context") else {f"{field.name}.{x}" for x in inner}
    return found


HTTP_NAMES = set(HEADERS).union(
    *(
        paths_of(kind, {"cache": CacheBody, "pause": PauseBody, "messages": Message, "tools": ToolBody})
        for kind in (ChatBody, CompletionBody)
    ),
    {"tools.function.name", "tools.function.parameters", "messages.tool_calls.function.name"},
)
RPC_NAMES = rpc_paths(pb.GenerateRequest.DESCRIPTOR) | rpc_paths(pb.ChatRequest.DESCRIPTOR)


@pytest.mark.parametrize(("_field", "body", "headers", "words"), HTTP)
def test_an_http_client_reads_its_own_names(
    admission: Admission, _field: str, body: dict[str, Any], headers: dict[str, str], words: str
) -> None:
    error = refused_over_http(admission, body, headers)
    assert error.message.startswith(words) and words.startswith(error.field)
    assert set(names_in(error)) <= HTTP_NAMES and error.violations[0].description == error.message


@pytest.mark.parametrize(("_field", "request_body", "words"), RPC)
def test_an_rpc_client_reads_the_protocols_names(
    admission: Admission, _field: str, request_body: dict[str, Any], words: str
) -> None:
    error = refused_over_rpc(admission, request_body)
    assert error.message.startswith(words) and words.startswith(error.field)
    assert set(names_in(error)) <= RPC_NAMES and error.violations[0].description == error.message


@pytest.mark.parametrize(("api", "table"), [("http", HTTP), ("rpc", RPC)])
def test_every_field_of_a_request_is_here(api: str, table: list[Any]) -> None:
    told = {row[0] for row in table}
    assert told | ANY_VALUE | ONE_API_ONLY[api] == {item.name for item in fields(RequestParams)}
    assert not told & ONE_API_ONLY[api]


def said_in_errors() -> Iterator[tuple[str, str]]:
    """(place, literal words) of every error that the gateway's inside makes; names that are marked as such are left out."""
    errors = {"invalid", "too_long", "number", "integer"} | {kind.__name__ for kind in all_errors()}
    root = Path(octavo_gateway.__file__).parent
    for path in root.rglob("*.py"):
        if path.parent.name == "http":
            continue  # speaks its client's own names
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(call, ast.Assign)
                and isinstance(call.targets[0], ast.Name)
                and call.targets[0].id == "problem"
            ):
                yield from ((f"{path.name}:{call.lineno}", word) for word in literals(call.value, []))
            if not isinstance(call, ast.Call) or called(call) not in errors:
                continue
            marked = [
                item
                for part in ast.walk(call)
                if isinstance(part, ast.Call) and called(part) == "FieldName"
                for item in ast.walk(part)
            ]
            for item in (
                *call.args[called(call) in ("invalid", "number", "integer") :],
                *(key.value for key in call.keywords if key.arg != "field"),
            ):
                yield from ((f"{path.name}:{call.lineno}", word) for word in literals(item, marked))


def literals(part: ast.AST, marked: list[ast.AST]) -> Iterator[str]:
    for word in ast.walk(part):
        if isinstance(word, ast.Constant) and isinstance(word.value, str) and word not in marked:
            yield word.value


def all_errors(root: type[OctavoError] = OctavoError) -> Iterator[type[OctavoError]]:
    for kind in root.__subclasses__():
        yield kind
        yield from all_errors(kind)


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def test_no_error_names_another_field_in_plain_text() -> None:
    """A name that an API has another for is a FieldName, else nobody renames it; the first word's own is one by itself."""
    told_apart = {*RENAMED, "beam_width", "max_tokens", "logprobs", "cache.off", "priority", "slo_class", "deadline_ms"}
    told_apart -= {"text", "ids", "priority"}  # words of English
    plain = [
        (place, word)
        for place, words in said_in_errors()
        for word in re.findall(r"[a-z_]+(?:\.[a-z_]+)*", re.sub(r"^[a-z_.]+: ", "", words))
        if word in told_apart
    ]
    assert plain == []
    assert len(list(said_in_errors())) > 100


def test_a_shared_error_is_told_to_each_client_in_its_words() -> None:
    error = UnknownModel("model: x", field="model")
    assert in_clients_words(error) is not error and in_rpcs_words(error) is not error
    assert in_clients_words(error).status is error.status
