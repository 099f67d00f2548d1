"""The hash of a request's body, by which a retry is told from another request of the same name."""

from __future__ import annotations

import json
from dataclasses import astuple, fields
from typing import Any, Final

from blake3 import blake3
from octavo.packing import pack_u32

from octavo_gateway.requests import ChatMessage, RequestParams

_NOT_BODY: Final = frozenset({"request_id", "idempotency_key", "deadline_ms"})
"""What names an attempt rather than says what to generate: a retry may change it."""
_APART: Final = frozenset({"messages", "logit_bias", "prompt_ids"})
_PLAIN: Final = tuple(item for item in fields(RequestParams) if item.name not in _NOT_BODY | _APART)
_LISTS: Final = tuple(item.name for item in _PLAIN if item.default == ())
_VALUES: Final = tuple((item.name, item.default) for item in _PLAIN if item.default != ())
_JSON: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=list)


def body_hash(params: RequestParams, tenant: str) -> bytes:
    """blake3 of what the client asked for, before defaults; two bodies with one hash ask for the same generation.

    What was left out, or is an empty list, says nothing: that is most of a body. Ids of a prompt follow the JSON as they travel, 4 bytes each.
    """
    body: dict[str, Any] = {name: value for name, default in _VALUES if (value := getattr(params, name)) != default}
    body |= {name: list(value) for name in _LISTS if (value := getattr(params, name))}
    if params.messages:
        body["messages"] = [_message(message) for message in params.messages]
    if params.logit_bias:
        body["logit_bias"] = sorted((int(k), float(v)) for k, v in params.logit_bias.items())
    body["tenant"] = tenant
    text = _JSON.encode(body).encode()
    return blake3(text if params.prompt_ids is None else text + b"\0" + pack_u32(params.prompt_ids)).digest()


def _message(message: ChatMessage) -> list[Any]:
    body: list[Any] = [message.role, message.content, message.name]
    if message.tool_calls or message.tool_call_id:
        body += [[astuple(call) for call in message.tool_calls], message.tool_call_id]
    return body
