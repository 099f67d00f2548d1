"""Chunks that are reused at other positions: what is copied, what holds it, and that nobody else ever finds it."""

from __future__ import annotations

from typing import Any

from octavo_scheduler.orders import Admit
from octavo_scheduler.preloads.cache_events import CacheEvicted, PreloadPinned, PreloadRemoved
from octavo_scheduler.preloads.explain import explain
from octavo_scheduler.preloads.rule import PromptChunk

ONE, TWO = list(range(1, 15)), list(range(31, 43))  # 3 whole blocks of 4 and 2 tokens; 3 whole blocks
OWN = [60, 61, 62]


def shop_of(make_shop: Any, **given: Any) -> Any:
    shop = make_shop(**({"blending": True, "blending_share": 0.25} | given))
    shop.put("one", ONE)
    shop.put("two", TWO)
    return shop


def ask(shop: Any, *names: str, **given: Any) -> Any:
    prompt, chunks = [], []
    for name in names:
        ids = {"one": ONE, "two": TWO}[name]
        chunks.append(PromptChunk(name, len(prompt), len(ids)))
        prompt += ids
    return shop.ask([*prompt, *OWN], cache=shop.rule(chunks=tuple(chunks)), **given)


def admits(shop: Any) -> list[Admit]:
    """Those that are on their way to the worker."""
    (link,) = shop.simulation.links
    return [order for _ready_us, orders in link.down for order in orders if isinstance(order, Admit)]


def test_two_chunks_are_copied_and_the_rest_is_computed(make_shop: Any) -> None:
    shop = shop_of(make_shop)
    client = ask(shop, "one", "two", run=False)
    (order,) = admits(shop)
    assert [(part.start, part.count, part.first) for part in order.blend_parts] == [(0, 12, 0), (14, 12, 0)]
    assert (order.cached_len, order.blend_share) == (26, 0.25)
    shop.run()
    assert client.outcome == "finished" and client.cached_tokens == 0
    assert shop.cell.counters["blended_tokens"] == 12
    book = shop.cell.ledger.books["blending"]
    assert book.entries == 1 and book.hit_tokens == 24 and book.saved_ms > book.cost_ms > 0


def test_what_was_blended_is_found_by_nobody(make_shop: Any) -> None:
    shop = shop_of(make_shop)
    ask(shop, "one", "two", max_tokens=12)
    held = len(shop.worker.index)
    assert held == 6 and shop.ask([*ONE, *TWO, *OWN, 1, 2]).cached_tokens == 12, "the exact beginning alone"
    again = ask(shop, "two", "one")
    assert again.cached_tokens == 0


def test_off_it_is_an_ordinary_prompt(make_shop: Any) -> None:
    shop = shop_of(make_shop, blending=False)
    client = ask(shop, "one", "two")
    assert client.cached_tokens == 12 and not shop.cell.counters["blended_tokens"]
    assert ask(shop, "one", "two").cached_tokens == 28


def test_one_chunk_alone_is_a_prefix(make_shop: Any) -> None:
    shop = shop_of(make_shop)
    assert ask(shop, "one").cached_tokens == 12 and not shop.cell.counters["blended_tokens"]


def test_what_is_copied_is_held_until_the_end(make_shop: Any) -> None:
    """The preload is removed, and others want its room, while a blend runs on its blocks."""
    shop = shop_of(make_shop)
    client = ask(shop, "one", "two", max_tokens=40, run=False)
    shop.steps(3)
    sequence = next(iter(shop.worker.sequences.values()))
    sources = list(sequence.sources)
    assert len(sources) == 6
    for name in ("one", "two"):
        shop.feed(PreloadRemoved(shop.simulation.now_us, "default", name))
    assert all(shop.worker.pool.sequences_of(block) for block in sources) and not len(shop.worker.index)
    shop.run()
    assert client.outcome == "finished"
    assert shop.worker.pool.free_blocks == shop.worker.pool.usable_blocks


def test_a_chunk_that_was_swapped_meanwhile_is_computed(make_shop: Any) -> None:
    shop = shop_of(make_shop)
    shop.put("two", [*TWO[:4], *range(50, 58)])
    client = ask(shop, "one", "two")
    assert client.outcome == "finished" and not shop.cell.counters["blended_tokens"]


def test_a_worker_that_cannot_blend_computes(make_shop: Any) -> None:
    shop = shop_of(make_shop)
    shop.worker.hello.capabilities.clear()
    assert ask(shop, "one", "two").outcome == "finished" and not shop.cell.counters["blended_tokens"]


def test_explain_says_that_it_was_blended(make_shop: Any) -> None:
    shop = shop_of(make_shop)
    client = ask(shop, "one", "two")
    request = shop.cell.registry.find("default", client.request_id)
    found = explain(shop.cell, request, 4)
    assert found.reason == "off" and "12 tokens were taken from other contexts" in found.message


def gone_to_store(make_shop: Any, **given: Any) -> Any:
    """Both preloads lie in the store alone: they were let go, and others took their room."""
    shop = shop_of(make_shop, store=True, **given)
    shop.wait_us(300_000)
    shop.simulation.flush_store("host")
    for name in ("one", "two"):
        shop.feed(PreloadPinned(shop.simulation.now_us, "default", name, False))
    for number in range(20):
        shop.ask([70 + number, *([51] * 100)])
    shop.simulation.flush_store("host")
    keys = [shop.cell.caching.book.named("default", name).keys for name in ("one", "two")]
    assert not any(key in shop.worker.index for chain in keys for key in chain)
    return shop


def test_chunks_that_a_store_holds_are_loaded_before_they_are_blended(make_shop: Any) -> None:
    shop = gone_to_store(make_shop, load_path="load")
    before = shop.cell.counters["loads_started"]
    client = ask(shop, "one", "two", run=False)
    assert not admits(shop) and len(shop.worker.transfers) == 2, "it waits for them"
    shop.run()
    assert client.outcome == "finished" and shop.cell.counters["blended_tokens"] == 12
    assert shop.cell.counters["chunks_loaded"] == 6
    assert shop.cell.counters["loads_started"] - before == 2 and len(shop.store.held) >= 6
    again = ask(shop, "two", "one")
    assert again.outcome == "finished" and shop.cell.counters["loads_started"] - before == 2, "they are in the pool now"
    assert shop.cell.counters["blended_tokens"] == 24


def test_chunks_that_are_sooner_computed_are_not_loaded(make_shop: Any) -> None:
    shop = gone_to_store(make_shop, load_path="recompute")
    before = shop.cell.counters["loads_started"]
    assert ask(shop, "one", "two").outcome == "finished"
    assert shop.cell.counters["loads_started"] == before and not shop.cell.counters["blended_tokens"]


def test_a_chunk_that_is_thrown_out_while_it_is_loaded_does_not_come_back(make_shop: Any) -> None:
    shop = gone_to_store(make_shop, load_path="load")
    keys = [*shop.cell.caching.book.named("default", "one").keys]
    client = ask(shop, "one", "two", run=False)
    assert shop.worker.transfers
    shop.feed(CacheEvicted(shop.simulation.now_us, "default", name="one"))
    shop.run()
    assert client.outcome == "finished" and not any(key in shop.worker.index for key in keys)


def test_a_chunk_that_is_replaced_while_it_is_loaded_is_nobody_s(make_shop: Any) -> None:
    shop = gone_to_store(make_shop, load_path="load")
    old = [*shop.cell.caching.book.named("default", "two").keys]
    client = ask(shop, "one", "two", run=False)
    assert shop.worker.transfers
    shop.put("two", [9] * 12, run=False)
    shop.run()
    assert client.outcome == "finished" and not any(key in shop.worker.index for key in old)
    assert shop.worker.pool.free_blocks + shop.worker.pool.pinned_blocks == shop.worker.pool.usable_blocks


def test_who_leaves_while_its_chunks_are_loaded_leaves_no_hold(make_shop: Any) -> None:
    shop = gone_to_store(make_shop, load_path="load")
    client = ask(shop, "one", "two", run=False)
    assert shop.worker.transfers
    shop.simulation.cancel(client)
    shop.run()
    assert client.outcome == "cancelled" and not shop.worker.transfers
    assert shop.worker.pool.free_blocks + shop.worker.pool.pinned_blocks == shop.worker.pool.usable_blocks


def test_a_store_that_never_answers_costs_a_computation(make_shop: Any) -> None:
    shop = gone_to_store(make_shop, load_path="load")
    shop.store.held.clear()  # and the directory does not know
    client = ask(shop, "one", "two")
    assert client.outcome == "finished" and not shop.cell.counters["blended_tokens"]
