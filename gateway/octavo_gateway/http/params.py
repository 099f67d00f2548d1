"""Bodies to RequestParams: one conversion per endpoint, nothing validated but what only HTTP can say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.errors import InvalidRequest

from octavo_gateway.caching.rules import one_salt
from octavo_gateway.call_opening import NAMED
from octavo_gateway.http.bodies import CacheBody, ChatBody, CompletionBody, GenerationBody, Message, PauseBody
from octavo_gateway.requests import ChatMessage, RequestParams, ToolCall

MAX_PROMPTS = 256
"""Prompts in one /v1/completions body; each is a request of its own inside."""


def completion_params(body: CompletionBody) -> list[RequestParams]:
    """One RequestParams per prompt. Raises InvalidRequest for a mixed or empty list."""
    prompts = _prompts(body.prompt)
    made = []
    for prompt in prompts:
        params = _common(body, "generate")
        if isinstance(prompt, str):
            params.prompt_text = prompt
        else:
            params.prompt_ids = prompt
        params.echo = bool(body.echo)
        params.logprobs = body.logprobs
        made.append(params)
    return made


def _prompts(prompt: str | list[str | int | list[int]]) -> Sequence[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequest("prompt: the list is empty; send a string or token ids", field="prompt")
    texts = [item for item in prompt if isinstance(item, str)]
    ids = [item for item in prompt if isinstance(item, int)]
    lists = [item for item in prompt if isinstance(item, list)]
    if len(ids) == len(prompt):
        return [ids]
    if len(texts) != len(prompt) and len(lists) != len(prompt):
        raise InvalidRequest("prompt: a list holds either strings, or token ids, or lists of token ids", field="prompt")
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequest(f"prompt: {len(prompt)} prompts; send at most {MAX_PROMPTS} at once", field="prompt")
    return texts or lists


def chat_params(body: ChatBody) -> RequestParams:
    """Raises InvalidRequest for content that is not text and for contradictory limits."""
    params = _common(body, "chat")
    params.messages = chat_messages(body.messages)
    params.add_generation_prompt = body.add_generation_prompt is not False
    params.tools, params.tool_choice = _tools(body), _tool_choice(body)
    if body.max_completion_tokens is not None:
        if body.max_tokens not in (None, body.max_completion_tokens):
            raise InvalidRequest("max_tokens: differs from max_completion_tokens; send one of them", field="max_tokens")
        params.max_tokens = body.max_completion_tokens
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs: needs logprobs true", field="top_logprobs")
    if body.logprobs:
        params.logprobs = body.top_logprobs or 0
    return params


def _tools(body: ChatBody) -> list[dict[str, Any]]:
    """In the shape that templates know, without what was not said."""
    made = []
    for i, tool in enumerate(body.tools or ()):
        at, said = f"tools[{i}]", tool.function
        if tool.type != "function":
            raise InvalidRequest(f"{at}.type: {tool.type[:40]!r} is unknown; use function", field=f"{at}.type")
        if said.strict:
            raise InvalidRequest(
                f"{at}.function.strict: arguments are not bound to the schema yet; leave the field out",
                field=f"{at}.function.strict",
            )
        given = {"name": said.name, "description": said.description, "parameters": said.parameters}
        kept = {key: value for key, value in given.items() if value is not None}
        made.append({"type": "function", "function": kept})
    if made and body.parallel_tool_calls is False:
        raise InvalidRequest(
            "parallel_tool_calls: false is not built yet; leave the field out and use the first call",
            field="parallel_tool_calls",
        )
    return made


def _tool_choice(body: ChatBody) -> str:
    """As one word: an object that names a function becomes `function NAME`, any other is refused later."""
    choice = body.tool_choice
    if not isinstance(choice, dict):
        return choice or ""
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return f"{NAMED}{name}" if isinstance(name, str) and choice.get("type") == "function" else "an object"


def chat_messages(messages: Sequence[Message]) -> list[ChatMessage]:
    """Content as one string each. Raises InvalidRequest naming `messages[i].field`."""
    return [
        ChatMessage(
            message.role,
            _content(message, f"messages[{i}]"),
            message.name or "",
            _calls(message, f"messages[{i}]"),
            message.tool_call_id or "",
        )
        for i, message in enumerate(messages)
    ]


def _calls(message: Message, where: str) -> list[ToolCall]:
    for i, call in enumerate(message.tool_calls or ()):
        if call.type != "function":
            field = f"{where}.tool_calls[{i}].type"
            raise InvalidRequest(f"{field}: {call.type[:40]!r} is unknown; use function", field=field)
    return [ToolCall(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]


def _content(message: Message, where: str) -> str:
    for field in ("function_call", "audio"):
        if getattr(message, field):
            raise InvalidRequest(f"{where}.{field}: not built yet; leave the field out", field=f"{where}.{field}")
    if message.content is None:
        if message.role == "assistant":
            return ""
        raise InvalidRequest(f"{where}.content: required; send a string or text parts", field=f"{where}.content")
    if isinstance(message.content, str):
        return message.content
    texts = []
    for i, part in enumerate(message.content):
        at = f"{where}.content[{i}]"
        if part.type != "text":
            raise InvalidRequest(f"{at}.type: {part.type!r} is not built yet; use text parts", field=f"{at}.type")
        if part.text is None:
            raise InvalidRequest(f"{at}.text: this field is required", field=f"{at}.text")
        texts.append(part.text)
    return "".join(texts)


def _beam_width(body: GenerationBody) -> int | None:
    """As vLLM: as many beams as come back. `best_of`, which it once had, keeps more than `n` of them. None: no beam search."""
    if not body.use_beam_search:
        if body.best_of is not None:
            raise InvalidRequest(
                "best_of: only use_beam_search takes it; use n and choose yourself, or set use_beam_search",
                field="best_of",
            )
        return None
    n = 1 if body.n is None else body.n
    if body.best_of is not None and body.best_of < n:
        raise InvalidRequest(f"best_of: {body.best_of} beams cannot give back n = {n}; use at least n", field="best_of")
    return n if body.best_of is None else body.best_of


def _common(body: GenerationBody, kind: str) -> RequestParams:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options: needs stream true", field="stream_options")
    width = _beam_width(body)
    cache = body.cache or CacheBody()
    pause = body.pause or PauseBody()
    return RequestParams(
        kind="chat" if kind == "chat" else "generate",
        model=body.model or "",
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=body.logit_bias or {},
        seed=body.seed,
        max_tokens=body.max_tokens,
        min_tokens=body.min_tokens or 0,
        stop=[body.stop] if isinstance(body.stop, str) else (body.stop or ()),
        stop_token_ids=body.stop_token_ids or (),
        ignore_eos=bool(body.ignore_eos),
        include_stop_str=bool(body.include_stop_str_in_output),
        n=1 if body.n is None and width is not None else body.n,
        beam_width=width or 0,
        length_penalty=body.length_penalty,
        early_stopping=body.early_stopping,
        skip_special_tokens=body.skip_special_tokens is not False,
        priority=body.priority or 0,
        slo_class=body.slo_class or "",
        deadline_ms=body.deadline_ms or 0,
        cache_off=bool(cache.off),
        cache_salt=one_salt(body.cache_salt or "", cache.salt or ""),
        cache_ttl_s=cache.ttl or 0.0,
        cache_pin=bool(cache.pin),
        cache_priority=cache.priority or 0,
        cache_tiers=tuple(cache.tiers or ()),
        cache_preload=cache.preload or "",
        cache_chunks=tuple(cache.chunks or ()),
        pause_tool=pause.tool or "",
        pause_expected_ms=pause.expected_ms or 0,
        resumes=body.resumes or "",
    )
