"""Preloads at the gateway: ids that a request continues, the content in force, and what cannot be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from octavo.errors import InvalidRequest, UnknownPreload
from octavo_gateway.admission import Admission
from octavo_gateway.caching import preloads as module
from octavo_gateway.caching.preloads import Preloaded, Preloads, adopt_salt, continue_preload, preload_ids
from octavo_gateway.chat import ChatRenderer
from octavo_gateway.requests import ChatMessage, RequestParams

DOCUMENTS = ["The library closes at six.", "Books about mountains are on the second floor."]


class Source:
    """A scheduler that knows some preloads."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], Preloaded] = {}
        self.fetched = 0

    async def use(self, tenant: str, name: str, known_content: bytes) -> Preloaded | None:
        found = self.known.get((tenant, name))
        if found is not None and found.content == known_content:
            return Preloaded(found.content, found.form, found.salt, ())
        self.fetched += found is not None
        return found


def chat(text: str, **given: Any) -> RequestParams:
    return RequestParams("chat", messages=[ChatMessage("user", text)], **given)


def test_a_chat_behind_a_system_preload_is_the_conversation_with_that_system_message(admission: Admission) -> None:
    held = Preloaded(b"1", "system", "", tuple(preload_ids(admission, DOCUMENTS, "system")))
    ids = continue_preload(admission, chat("When does it close?"), held)
    messages = [ChatMessage("system", "\n\n".join(DOCUMENTS)), ChatMessage("user", "When does it close?")]
    assert ids == admission.chat.encode(messages)
    assert ids[: len(held.token_ids)] == list(held.token_ids)


def test_a_raw_prompt_continues_raw_text_and_begins_nothing_anew(admission: Admission) -> None:
    held = Preloaded(b"1", "raw", "", tuple(preload_ids(admission, ["One two."], "raw")))
    params = RequestParams("generate", prompt_text=" Three.")
    assert continue_preload(admission, params, held) == [*held.token_ids, *admission.tokenizer.encode(" Three.")]
    ids = RequestParams("generate", prompt_ids=[5, 6])
    assert continue_preload(admission, ids, held) == [*held.token_ids, 5, 6]
    assert continue_preload(admission, chat("x"), held) == [
        *held.token_ids,
        *admission.chat.encode([ChatMessage("user", "x")]),  # ChatML: the BOS token opens every turn
    ]


def test_a_template_s_own_bos_is_left_out_behind_a_preload(admission: Admission) -> None:
    chatty = ChatRenderer("{{ bos_token }}[{{ messages[0].content }}]", admission.tokenizer)
    held = Preloaded(b"1", "raw", "", (1, 5))
    ids = continue_preload(replace(admission, chat=chatty), chat("x"), held)
    assert ids == [1, 5, *admission.tokenizer.encode("[x]")]


def test_two_system_messages_and_a_template_without_a_border_are_refused(admission: Admission) -> None:
    held = Preloaded(b"1", "system", "", (1, 2))
    both = RequestParams("chat", messages=[ChatMessage("system", "a"), ChatMessage("user", "b")])
    with pytest.raises(InvalidRequest, match="the preload is the system message"):
        continue_preload(admission, both, held)
    odd = ChatRenderer("{{ messages | length }}{{ messages[-1].content }}", admission.tokenizer)
    with pytest.raises(InvalidRequest, match="raw text"):
        odd.encode_behind_system([ChatMessage("user", "x")])


@pytest.mark.parametrize(
    ("texts", "form", "field"),
    [([], "raw", "texts"), (["  ", ""], "raw", "texts"), (["a"], "other", "form"), (["\ud800"], "raw", "texts[0]")],
)
def test_what_cannot_be_preloaded_names_its_field(
    admission: Admission, texts: list[str], form: str, field: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        preload_ids(admission, texts, form)
    assert raised.value.field == field


async def test_the_content_in_force_is_asked_for_each_time_and_its_ids_only_once() -> None:
    source = Source()
    preloads = Preloads(source)
    with pytest.raises(UnknownPreload, match="octavo cache ls"):
        await preloads.use("t", "docs")
    source.known["t", "docs"] = Preloaded(b"1", "raw", "", (1, 2, 3))
    assert (await preloads.use("t", "docs")).token_ids == (1, 2, 3)
    assert (await preloads.use("t", "docs")).token_ids == (1, 2, 3) and source.fetched == 1
    source.known["t", "docs"] = Preloaded(b"2", "raw", "", (4,))
    assert (await preloads.use("t", "docs")).token_ids == (4,) and source.fetched == 2
    del source.known["t", "docs"]
    with pytest.raises(UnknownPreload):
        await preloads.use("t", "docs")
    with pytest.raises(UnknownPreload):
        await preloads.use("another", "docs")


async def test_what_was_used_long_ago_is_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_TOKENS", 4)
    source = Source()
    for name in ("a", "b"):
        source.known["t", name] = Preloaded(b"1", "raw", "", (1, 2, 3))
    preloads = Preloads(source)
    for name in ("a", "b", "a"):
        assert (await preloads.use("t", name)).token_ids == (1, 2, 3)
    assert source.fetched == 3


def test_a_preload_s_salt_is_adopted_and_another_refused() -> None:
    params = RequestParams("generate", prompt_text="x")
    adopt_salt(params, Preloaded(b"1", "raw", "s", ()))
    assert params.cache_salt == "s"
    with pytest.raises(InvalidRequest, match=r"cache\.salt"):
        adopt_salt(params, Preloaded(b"1", "raw", "other", ()))
