"""Why a request found what it found: one test per reason, and the token where it left."""

from __future__ import annotations

from array import array
from typing import Any

from octavo_scheduler.preloads.explain import Explanation, common, explain
from octavo_scheduler.preloads.rule import CacheRule

PROMPT = list(range(1, 26))


def why(shop: Any, client: Any) -> Explanation:
    request = shop.cell.registry.find("default", client.request_id)
    assert request is not None
    return explain(shop.cell, request, 4)


def test_nothing_is_known_and_then_everything_is_found(make_shop: Any) -> None:
    shop = make_shop()
    first, second = shop.ask(PROMPT), shop.ask(PROMPT)
    assert (why(shop, first).reason, why(shop, first).left_at) == ("none", 0)
    found = why(shop, second)
    assert (found.reason, found.cached_tokens, found.left_at, found.nearest) == ("whole", 24, 24, first.request_id)


def test_the_text_differs_at_a_token(make_shop: Any) -> None:
    shop = make_shop()
    first = shop.ask(PROMPT)
    found = why(shop, shop.ask([*PROMPT[:14], 90, 91, 92, 93]))
    assert (found.reason, found.left_at, found.shared_tokens, found.cached_tokens) == ("text", 14, 14, 12)
    assert found.nearest == first.request_id and found.around_from == 6
    assert list(found.own or ()) == [*PROMPT[6:14], 90, 91, 92, 93]
    assert list(found.other or ())[:10] == PROMPT[6:16]


def test_a_continued_conversation_is_near_to_the_answer_too(make_shop: Any) -> None:
    shop = make_shop()
    first = shop.ask(PROMPT, max_tokens=8)
    found = why(shop, shop.ask([*PROMPT, *first.got[0][:7], 90, 91, 92, 93, 94]))
    assert (found.reason, found.left_at, found.cached_tokens) == ("text", 32, 32)


def test_less_than_a_block_is_shared(make_shop: Any) -> None:
    shop = make_shop()
    shop.ask(PROMPT)
    found = why(shop, shop.ask([1, 2, 3, 90, 91, 92]))
    assert (found.reason, found.left_at) == ("short", 3) and "block of 4" in found.message


def test_a_salt_a_layout_and_a_namespace_of_its_own(make_shop: Any) -> None:
    shop = make_shop()
    shop.ask(PROMPT, cache=CacheRule(layout=b"L"))
    shop.simulation.root = shop.root(0, "salt")
    salted = shop.ask(PROMPT, cache=CacheRule(layout=b"L"))
    assert (why(shop, salted).reason, why(shop, salted).left_at) == ("salt", 0)
    shop.simulation.root = b"o" * 32
    assert why(shop, shop.ask(PROMPT, cache=CacheRule(layout=b"M"))).reason == "layout"
    shop.simulation.root = b"p" * 32
    shop.cell.caching.generations["default"] = 1
    assert why(shop, shop.ask(PROMPT, cache=CacheRule(layout=b"M", generation=1))).reason == "namespace"


def test_evicted_and_off(make_shop: Any) -> None:
    shop = make_shop()
    shop.ask(PROMPT)
    for key in list(shop.worker.index.heads()):
        shop.worker.index.drop(key)
    found = why(shop, shop.ask(PROMPT))
    assert (found.reason, found.left_at, found.cached_tokens) == ("evicted", 0, 0)
    off = why(shop, shop.ask(PROMPT, cache_off=True))
    assert off.reason == "off" and "24 tokens" in off.message


def test_the_nearest_was_still_computing(make_shop: Any) -> None:
    shop = make_shop(join_prefill=False)
    shop.ask(PROMPT, run=False, max_tokens=2)
    second = shop.ask(PROMPT)
    assert why(shop, second).reason == "running"


def test_a_preload_is_something_to_be_near_to(make_shop: Any) -> None:
    shop = make_shop()
    shop.put("docs", PROMPT)
    found = why(shop, shop.ask([*PROMPT[:10], 90, 91, 92]))
    assert (found.nearest, found.reason, found.left_at) == ("preload/docs", "text", 10)


def test_common_beginnings() -> None:
    a = array("I", range(1000))
    for length in (0, 1, 7, 512, 1000):
        b = array("I", [*range(length), *([9999] * 5)])
        assert common(a, b) == length == common(b, a)
