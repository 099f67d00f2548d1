"""Preloads as a gateway knows them: token ids by (tenant, name), asked of the scheduler for each use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from octavo.errors import UnknownPreload

from octavo_gateway import sampling_checks as check
from octavo_gateway.admission import Admission
from octavo_gateway.requests import ChatMessage, RequestParams

KEPT_TOKENS: Final = 2_000_000
"""Ids of preloads kept here, in tokens; others are fetched again."""
FORMS: Final = ("system", "raw")
MAX_TEXTS: Final = 4096


@dataclass(frozen=True, slots=True)
class Preloaded:
    """What a request continues. `content` tells one from another, also of the same name and version."""

    content: bytes
    form: str
    salt: str
    token_ids: tuple[int, ...]


class PreloadSource(Protocol):
    """Who knows the preloads: the scheduler."""

    async def use(self, tenant: str, name: str, known_content: bytes) -> Preloaded | None:
        """The preload in force, for a request that is about to use it. Its ids are empty when `known_content` is it; None: unknown."""


class Preloads:
    """Keeps the ids of what was used lately."""

    def __init__(self, source: PreloadSource) -> None:
        self._source = source
        self._kept: OrderedDict[tuple[str, str], Preloaded] = OrderedDict()
        self._kept_tokens = 0

    async def use(self, tenant: str, name: str, field: str = "cache.preload") -> Preloaded:
        """The content in force at this moment. Raises UnknownPreload, Unavailable."""
        known = self._kept.get((tenant, name))
        found = await self._source.use(tenant, name, known.content if known is not None else b"")
        if found is None:
            self._forget((tenant, name))
            raise UnknownPreload(f"{field}: {name!r} is not known; `octavo cache ls` lists what is", field=field)
        if not found.token_ids and known is not None and known.content == found.content:
            self._kept.move_to_end((tenant, name))
            return known
        self._keep((tenant, name), found)
        return found

    def _keep(self, name: tuple[str, str], found: Preloaded) -> None:
        self._forget(name)
        self._kept[name] = found
        self._kept_tokens += len(found.token_ids)
        while self._kept_tokens > KEPT_TOKENS and len(self._kept) > 1:
            self._forget(next(iter(self._kept)))

    def _forget(self, name: tuple[str, str]) -> None:
        gone = self._kept.pop(name, None)
        if gone is not None:
            self._kept_tokens -= len(gone.token_ids)


def adopt_salt(params: RequestParams, preload: Preloaded) -> None:
    """A request finds a preload only under its salt. InvalidRequest when it names another one."""
    if params.cache_salt not in ("", preload.salt):
        raise check.invalid("cache.salt", "is not the salt of the preload; leave it out")
    params.cache_salt = preload.salt


def continue_preload(admission: Admission, params: RequestParams, preload: Preloaded) -> list[int]:
    """Prompt ids: the preload's, then the request's own text, which never begins anew."""
    head = list(preload.token_ids)
    if params.kind == "chat":
        if params.tools:
            raise check.invalid("tools", "a preload stands where they would be told; name one or the other")
        if preload.form == "system":
            return head + admission.chat.encode_behind_system(
                params.messages, add_generation_prompt=params.add_generation_prompt
            )
        own = admission.chat.encode(params.messages, add_generation_prompt=params.add_generation_prompt)
        bos = admission.tokenizer.bos_id
        # a BOS comes once; where the same token opens every turn (ChatML), the first is no BOS
        return head + (own[1:] if own and own[0] == bos and own.count(bos) == 1 else own)
    if params.prompt_ids is not None:
        return head + list(params.prompt_ids)
    return head + admission.tokenizer.encode(params.prompt_text or "")


def preload_ids(admission: Admission, texts: Sequence[str], form: str) -> list[int]:
    """Ids of the documents, joined by an empty line. InvalidRequest naming the field."""
    if form not in FORMS:
        raise check.invalid("form", f"{form[:40]!r} is unknown; use {' or '.join(FORMS)}")
    if not any(text.strip() for text in texts):
        raise check.invalid("texts", "there is nothing in them; send at least one document")
    if len(texts) > MAX_TEXTS:
        raise check.invalid("texts", f"{len(texts)} documents; send at most {MAX_TEXTS}")
    for i, text in enumerate(texts):
        check.text(f"texts[{i}]", text)
    whole = "\n\n".join(texts)
    if form == "system":
        return admission.chat.encode([ChatMessage("system", whole)], add_generation_prompt=False)
    return admission.tokenizer.with_bos(admission.tokenizer.encode(whole))
