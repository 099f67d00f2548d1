"""What an HTTP client calls the fields that errors name: OpenAI's and vLLM's names, and headers, as this client sent them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from octavo.errors import OctavoError

from octavo_gateway.http.bodies import ChatBody, GenerationBody
from octavo_gateway.http.edge import CallHeaders

RENAMED: Final[Mapping[str, str]] = {
    "prompt_text": "prompt",
    "prompt_ids": "prompt",
    "prompt_tokens": "prompt",
    "text": "prompt",
    "token_ids": "prompt",
    "prompt.text": "prompt",
    "prompt.token_ids": "prompt",
    "token_ids.ids": "prompt",
    "ids": "prompt",
    "include_stop_str": "include_stop_str_in_output",
    "request_id": "X-Request-Id",
    "idempotency_key": "Idempotency-Key",
    "cache_off": "X-Octavo-Cache",
    "api_key": "Authorization",
}
"""The gateway's field names that HTTP clients know under another one, whatever the body."""


def in_clients_words(
    error: OctavoError, body: GenerationBody | None = None, headers: CallHeaders | None = None
) -> OctavoError:
    """The error in the names that the client of this body and these headers used."""
    renamed = {**RENAMED, **_by_body(body), **(_by_headers(body, headers) if body and headers else {})}
    return error.renamed(_rename(renamed))


def _by_body(body: GenerationBody | None) -> dict[str, str]:
    if body is None:
        return {}
    searched = "n" if body.best_of is None else "best_of"
    renamed = {"beam_width": searched if body.use_beam_search else "use_beam_search"}
    if isinstance(body, ChatBody):
        renamed["logprobs"] = "logprobs" if body.top_logprobs is None else "top_logprobs"
        if body.max_completion_tokens is not None:
            renamed["max_tokens"] = "max_completion_tokens"
    return renamed


def _by_headers(body: GenerationBody, headers: CallHeaders) -> dict[str, str]:
    """What only a header said."""
    renamed = {}
    if headers.priority and not body.priority:
        renamed["priority"] = "X-Octavo-Priority"
    if headers.slo_class and not body.slo_class:
        renamed["slo_class"] = "X-Octavo-Slo-Class"
    if headers.deadline_ms and not body.deadline_ms:
        renamed["deadline_ms"] = "X-Octavo-Deadline-Ms"
    if headers.cache_off and not (body.cache and body.cache.off):
        renamed["cache.off"] = "X-Octavo-Cache"
    return renamed


def _rename(renamed: Mapping[str, str]) -> Callable[[str], str]:
    def name(field: str) -> str:
        for prefix in ("sampling.", "options.", "context."):
            field = field.removeprefix(prefix)
        if field in renamed:
            return renamed[field]
        head, bracket, rest = field.partition("[")
        return renamed.get(head, head) + bracket + rest

    return name
