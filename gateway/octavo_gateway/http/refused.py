"""Fields that clients know from OpenAI or vLLM and that Octavo does not serve: refused, never silently ignored.

Unknown names are ignored, as vLLM does; so are user, metadata and service_tier.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from octavo.errors import InvalidRequest

from octavo_gateway.http.bodies import decode_body

_ABSENT = msgspec.Raw(b"")
_OFF: tuple[Any, ...] = (None, False, "", [], {})

COMMON: Mapping[str, tuple[Any, ...]] = {
    "allowed_token_ids": (None,),
    "bad_words": _OFF,
    "truncate_prompt_tokens": (None,),
    "prompt_logprobs": (None,),
    "spaces_between_special_tokens": (None, True),
    "return_token_ids": _OFF,
    "return_tokens_as_token_ids": _OFF,
    "logits_processors": _OFF,
    "kv_transfer_params": _OFF,
    "vllm_xargs": _OFF,
    "structured_outputs": _OFF,
    "guided_json": _OFF,
    "guided_regex": _OFF,
    "guided_choice": _OFF,
    "guided_grammar": _OFF,
    "typical_p": (None, 1),
    "top_a": (None, 0),
}
COMPLETION_ONLY: Mapping[str, tuple[Any, ...]] = {
    "suffix": (None, ""),
    "prompt_embeds": _OFF,
}
CHAT_ONLY: Mapping[str, tuple[Any, ...]] = {
    "functions": _OFF,
    "function_call": (None, "none", "auto"),
    "reasoning_effort": (None, "none"),
    "modalities": (None, [], ["text"]),
    "audio": _OFF,
    "prediction": _OFF,
    "web_search_options": (None,),
    "store": _OFF,
    "verbosity": (None,),
    "chat_template": _OFF,
    "chat_template_kwargs": _OFF,
    "continue_final_message": _OFF,
    "documents": _OFF,
    "echo": _OFF,
}
FIXES: Mapping[str, str] = {
    "prompt_logprobs": "use logprobs",
}
"""Field -> what to do instead of leaving it out."""


def _struct(name: str, table: Mapping[str, tuple[Any, ...]]) -> type[msgspec.Struct]:
    names = [*table, "response_format"]
    return msgspec.defstruct(name, [(field, msgspec.Raw, _ABSENT) for field in names])


COMPLETION_TABLE = {**COMMON, **COMPLETION_ONLY}
CHAT_TABLE = {**COMMON, **CHAT_ONLY}
_COMPLETION = _struct("RefusedInCompletions", COMPLETION_TABLE)
_CHAT = _struct("RefusedInChat", CHAT_TABLE)


def check_completion(raw: bytes) -> None:
    """Raises InvalidRequest naming the first known field that /v1/completions does not serve."""
    _check(decode_body(raw, _COMPLETION), COMPLETION_TABLE)


def check_chat(raw: bytes) -> None:
    """Raises InvalidRequest naming the first known field that /v1/chat/completions does not serve."""
    _check(decode_body(raw, _CHAT), CHAT_TABLE)


def _check(body: msgspec.Struct, table: Mapping[str, tuple[Any, ...]]) -> None:
    for field, harmless in table.items():
        value = _value(body, field)
        if value is not _ABSENT and not any(_same(value, off) for off in harmless):
            fix = FIXES.get(field, "leave the field out")
            raise InvalidRequest(f"{field}: not built yet; {fix}", field=field)
    _check_response_format(_value(body, "response_format"))


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)  # JSON's 1 is not true


def _value(body: msgspec.Struct, field: str) -> Any:
    raw = getattr(body, field)
    if raw is _ABSENT:
        return _ABSENT
    try:
        return msgspec.json.decode(raw)
    except RecursionError:
        raise InvalidRequest(f"{field}: JSON is nested too deeply", field=field) from None


def _check_response_format(value: Any) -> None:
    if value is _ABSENT or value is None:
        return
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return
    if kind in ("json_object", "json_schema", "grammar", "structural_tag", "regex"):
        raise InvalidRequest(f"response_format: {kind} is not built yet; use text", field="response_format")
    raise InvalidRequest('response_format: expected {"type": "text"}', field="response_format")
